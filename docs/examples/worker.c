/* Starts a command inside a claim, as a job's worker does (../claims-on-a-node.md, "On the host itself").
 *     cc -o worker worker.c && ./worker /run/xce-agent/agent.sock NAME SECONDS COMMAND [ARGUMENT ...]
 * NAME is a binding, a claim or a consumer. Waits until it is ready, puts a child into its control groups before
 * the child runs anything, gives it the claim's variables, and ends as the command does. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static FILE *agent;

static void die(const char *what, const char *why)
{
    fprintf(stderr, "worker: %s: %s\n", what, why);
    exit(125);
}

/* One request, one answer, each a line of JSON. The answer is the caller's. */
static char *ask(const char *request)
{
    char *line = NULL;
    size_t size = 0;
    fprintf(agent, "%s\n", request);
    fflush(agent);
    if (getline(&line, &size, agent) < 0)
        die("the agent", "it did not answer");
    if (!strncmp(line, "{\"error\":", 9))
        die("the agent", line);
    return line;
}

/* The JSON string at *p, which is its first quote, decoded in place; *p is then behind it. */
static char *string(char **p)
{
    char *begin = ++*p, *to = begin;
    for (; **p && **p != '"'; ++*p) {
        if (**p == '\\') {
            static const char from[] = "nrtbf", with[] = "\n\r\t\b\f";
            const char *found = strchr(from, *++*p);
            if (**p == 'u') /* the agent writes all but control characters as they are */
                *to++ = (char)strtol((char[]){(*p)[3], (*p)[4], 0}, NULL, 16), *p += 4;
            else
                *to++ = found && *found ? with[found - from] : **p;
        } else
            *to++ = **p;
    }
    ++*p;
    *to = '\0';
    return begin;
}

/* Sets the variables of every binding in the answer: {"variables":{"NAME":"text",...}}. */
static void set_variables(char *answer)
{
    for (char *p = answer; (p = strstr(p, "\"variables\":{")); ) {
        p += strlen("\"variables\":{");
        while (*p == '"') {
            char *name = string(&p);
            p++; /* the colon */
            char *text = string(&p);
            if (setenv(name, text, 1))
                die("variable", name);
            p += *p == ',';
        }
    }
}

int main(int count, char **arguments)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char request[512];
    int status, go[2], link = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (count < 5 || strlen(arguments[1]) >= sizeof address.sun_path || strpbrk(arguments[2], "\"\\"))
        die("usage", "worker SOCKET NAME SECONDS COMMAND [ARGUMENT ...]");
    strcpy(address.sun_path, arguments[1]);
    if (connect(link, (struct sockaddr *)&address, sizeof address) || !(agent = fdopen(link, "r+")))
        die("cannot reach the agent", arguments[1]);
    snprintf(request, sizeof request, "{\"op\":\"publish\",\"name\":\"%s\",\"seconds\":%g}", arguments[2],
             atof(arguments[3]));
    set_variables(ask(request));
    if (pipe2(go, O_CLOEXEC))
        die("pipe", "cannot make one");
    pid_t child = fork();
    if (child == 0) { /* nothing of the job's runs before it is in its control groups */
        char byte;
        close(go[1]);
        if (read(go[0], &byte, 1) == 1)
            execvp(arguments[4], arguments + 4);
        _exit(127);
    }
    snprintf(request, sizeof request, "{\"op\":\"add-process\",\"name\":\"%s\",\"pid\":%d}", arguments[2], (int)child);
    free(ask(request)); /* if it fails, we end, and the child finds the end of the pipe */
    if (write(go[1], "!", 1) != 1 || waitpid(child, &status, 0) < 0)
        die("the command", "it cannot be started");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
