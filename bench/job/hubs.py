"""All hubs by name."""

from bench.job.etcd import Etcd
from bench.job.floor import Floor
from bench.job.hub import Hub
from bench.job.mqtt import Mosquitto
from bench.job.nats import Nats
from bench.job.rabbit import Rabbit
from bench.job.redis import Redis, RedisHash
from bench.job.xce import Xce, XceCurve, XceOpen, XceTcp

_ALL = (
    Xce(),
    XceTcp(),
    XceCurve(),
    XceOpen(),
    Floor(),
    Redis(),
    RedisHash(),
    Nats(),
    Mosquitto(),
    Rabbit(),
    Etcd(),
)
HUBS: dict[str, Hub] = {hub.name: hub for hub in _ALL}
