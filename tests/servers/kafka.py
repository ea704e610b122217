"""A real Kafka broker for tests: one node that is its own controller (KRaft), on loopback ports, data in a temporary
directory.

Its jars come from Maven, by `kafka_broker/pom.xml`.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from evertide.runtime import SystemRuntime
from tests.servers.maven import PLUGIN, copy_jars, program

START_LIMIT_S = 60.0
POM = Path(__file__).parent / "kafka_broker" / "pom.xml"
CLUSTER = "ZXZlcnRpZGUtdGVzdHMtMQ"
USER = "evertide"
PASSWORD = "a-password-that-nobody-may-see"
JAVA = [
    "-Xms128m",
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
]
PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{sasl},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{sasl}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
controller.listener.names=CONTROLLER
sasl.enabled.mechanisms=PLAIN
listener.name.sasl_plaintext.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
user_{user}="{password}";
log.dirs={data}
auto.create.topics.enable=false
group.coordinator.rebalance.protocols=classic
group.initial.rebalance.delay.ms=0
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
log.cleaner.backoff.ms=100
log.cleaner.dedupe.buffer.size=4000000
log.retention.check.interval.ms=200
log.retention.ms=-1
num.network.threads=2
num.io.threads=2
background.threads=2
controlled.shutdown.enable=false
broker.heartbeat.interval.ms=100
broker.session.timeout.ms=1000
"""


@dataclass
class KafkaBroker:
    """`stop` and `start` restart the broker with the same data and ports."""

    directory: Path
    port: int
    sasl_port: int
    classpath: str
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def brokers(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def sasl_brokers(self) -> str:
        return f"127.0.0.1:{self.sasl_port}"

    def start(self) -> None:
        with (self.directory / "log").open("ab") as log:
            command = [*self.java(), "kafka.Kafka", str(self.directory / "server.properties")]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.directory)
        self._wait()

    def stop(self, how: int = signal.SIGKILL) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(START_LIMIT_S)
            self.process = None

    def java(self) -> list[str]:
        return [program("java"), *JAVA, "-cp", self.classpath]

    def log(self) -> str:
        return (self.directory / "log").read_text()[-20_000:]

    def _wait(self) -> None:
        runtime = SystemRuntime()
        deadline_s = runtime.monotonic_s() + START_LIMIT_S
        admin = AdminClient({"bootstrap.servers": self.brokers, "log_level": 0, "reconnect.backoff.max.ms": 200})
        while True:
            assert self.process is not None
            try:
                admin.list_topics(timeout=0.5)
            except KafkaException:
                if self.process.poll() is not None or runtime.monotonic_s() > deadline_s:
                    raise RuntimeError(f"Kafka did not start:\n{self.log()}") from None
            else:
                return


@contextmanager
def running_kafka() -> Iterator[KafkaBroker]:
    goal = ["-f", str(POM), f"{PLUGIN}:copy-dependencies", "-DincludeScope=runtime"]
    jars = copy_jars("kafka", goal, POM.read_bytes())
    directory = Path(tempfile.mkdtemp(prefix="evertide-kafka-"))
    try:
        port, sasl, controller = _free_ports(3)
        broker = KafkaBroker(directory, port, sasl, f"{jars}/*")
        properties = directory / "server.properties"
        properties.write_text(
            PROPERTIES.format(
                port=port, sasl=sasl, controller=controller, data=directory / "data", user=USER, password=PASSWORD
            )
        )
        format_storage = ["kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(properties)]
        formatted = subprocess.run([*broker.java(), *format_storage], capture_output=True, text=True, check=False)
        if formatted.returncode:
            raise RuntimeError(f"Kafka's storage could not be formatted:\n{formatted.stdout}{formatted.stderr}")
        try:
            broker.start()
            yield broker
        finally:
            broker.stop()
    finally:
        shutil.rmtree(directory)


def _free_ports(count: int) -> list[int]:
    """Reserved together, so that they differ."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()
