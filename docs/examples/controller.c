/* Follows the broker's supply map: a snapshot, then every change with its number (../protocol.md).
 *     cc -o controller controller.c -lzmq && ./controller tcp://HOST:7400 controller.key broker.pub
 * When the link breaks it goes on after the last change; when changes were lost it takes a new snapshot. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

enum { CREDIT = 64, TEXT = 512 };
static void *broker;               /* a DEALER */
static char position[TEXT];        /* of the newest change that we have, in JSON */
static unsigned whole, request, changes; /* is the map whole; our newest request; changes so far */

static void die(const char *what, const char *why)
{
    fprintf(stderr, "controller: %s: %s\n", what, why);
    exit(1);
}

/* The end of the JSON value that begins at p; the broker writes no blanks (or use a library). */
static const char *skip(const char *p)
{
    int depth = 0;
    do {
        if (*p == '"')
            for (p++; *p && *p != '"'; p++)
                p += *p == '\\' && p[1];
        depth += (*p == '{' || *p == '[') - (*p == '}' || *p == ']');
        p += *p != '\0';
    } while (*p && (depth > 0 || !strchr(",}]:", *p)));
    return p;
}

/* Steps through an object: p is its '{', then what the last step returned; NULL after the last member. */
static const char *member(const char *p, const char **name, const char **value)
{
    if (!p || (*p != '{' && *p != ',') || p[1] != '"')
        return NULL;
    *name = p + 2, *value = skip(p + 1) + 1;
    return skip(*value);
}

/* The value of a member of an object, "" if it is not there. */
static const char *get(const char *object, const char *key)
{
    const char *name, *value;
    while ((object = member(object, &name, &value)))
        if (!strncmp(name, key, strlen(key)) && name[strlen(key)] == '"')
            return value;
    return "";
}

static void say(const char *format, ...)
{
    char text[2 * TEXT];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    zmq_send(broker, text, strlen(text), ZMQ_DONTWAIT); /* if the link is broken, `ask` comes again */
}

static void ask(void)
{
    const char *watch = "{\"type\":\"watch\",\"id\":\"c%u\",\"since\":%s,\"credit\":%d}";
    say(whole ? watch : "{\"type\":\"snapshot\",\"id\":\"c%u\"}", ++request, position, CREDIT);
}

/* One line for each location; a real controller puts it into its own tables here. */
static void show(const char *message)
{
    const char *maps[] = {"values", "locations"}, *name, *value, *next, *removed = get(message, "removed");
    long sequence = strtol(get(position, "sequence"), NULL, 10);
    if (*removed)
        printf("#%ld removed %.*s\n", sequence, (int)(skip(removed) - removed), removed);
    for (int map = 0; map < 2; map++)
        for (next = get(message, maps[map]); (next = member(next, &name, &value));)
            printf("#%ld %.*s %.*s\n", sequence, (int)strcspn(name, "\""), name, (int)(next - value), value);
}

static void take(const char *message)
{
    const char *type = get(message, "type") + 1, *id = get(message, "id"), *place = get(message, "position");
    if (!strncmp(type, "failed", 6) || !strncmp(type, "refused", 7))
        die("the broker refuses", message);
    if (strncmp(id, "\"c", 2) || strtoul(id + 2, NULL, 10) != request)
        return; /* of a request that we have given up */
    if (*place)
        snprintf(position, sizeof position, "%.*s", (int)(skip(place) - place), place);
    show(message);
    if (!strncmp(type, "snapshot.end", 12) || !strncmp(type, "lost", 4)) {
        whole = *type == 's';
        printf(whole ? "whole\n" : "lost %s\n", message);
        ask();
    } else if (!strncmp(type, "delta", 5) && ++changes % (CREDIT / 2) == 0)
        say("{\"type\":\"credit\",\"id\":\"c%u\",\"more\":%d}", request, CREDIT / 2);
}

/* A key (Z85) from a certificate file of `xce-broker key new`. */
static void set_key(int option, const char *path, const char *which)
{
    char line[TEXT], key[41] = "";
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        if (strstr(line, which) && sscanf(line, "%*[^\"]\"%40[^\"]", key) == 1)
            fclose(file), file = NULL;
    if (zmq_setsockopt(broker, option, key, sizeof key))
        die(path, "no key in it");
}

static void set(int option, int value) { zmq_setsockopt(broker, option, &value, sizeof value); }

int main(int count, char **arguments)
{
    static char text[(64 << 20) + 1]; /* no message is longer */
    void *context = zmq_ctx_new(), *monitor = zmq_socket(context, ZMQ_PAIR);
    broker = zmq_socket(context, ZMQ_DEALER);
    set(ZMQ_IMMEDIATE, 1), set(ZMQ_RECONNECT_IVL, 500), set(ZMQ_RECONNECT_IVL_MAX, 2000);
    if (count == 4) {
        set_key(ZMQ_CURVE_PUBLICKEY, arguments[2], "public-key");
        set_key(ZMQ_CURVE_SECRETKEY, arguments[2], "secret-key");
        set_key(ZMQ_CURVE_SERVERKEY, arguments[3], "public-key");
    }
    zmq_socket_monitor(broker, "inproc://m", ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH |
                                                 ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL);
    if ((count != 2 && count != 4) || zmq_connect(monitor, "inproc://m") || zmq_connect(broker, arguments[1]))
        die("usage", "controller ENDPOINT [OUR.key BROKER.pub]");
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (zmq_pollitem_t items[] = {{broker, 0, ZMQ_POLLIN, 0}, {monitor, 0, ZMQ_POLLIN, 0}};;) {
        zmq_poll(items, 2, -1);
        for (int from = 0; from < 2; from++) {
            if (!(items[from].revents & ZMQ_POLLIN))
                continue;
            int size = zmq_recv(items[from].socket, text, sizeof text - 1, 0);
            if (size < 0 || size >= (int)sizeof text)
                die("receive", zmq_strerror(zmq_errno()));
            text[size] = '\0';
            if (from == 0)
                take(text);
            else if (size == 6 && *(unsigned short *)(void *)text == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH)
                die(arguments[1], "the broker does not know our key");
            else if (size == 6 && *(unsigned short *)(void *)text == ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL)
                fprintf(stderr, "controller: %s: hung up on us; is BROKER.pub its key?\n", arguments[1]);
            else if (size == 6) /* not the address that follows each event */
                ask(); /* on a new link: what we asked on the old one is forgotten */
        }
    }
}
