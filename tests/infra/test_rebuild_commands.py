"""`turnlog rebuild`, `archive` and `reconcile` on real servers, as an operator runs them."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request

import pytest
from msgspec.structs import replace

from infra.kafka_admin import KafkaAdmin
from infra.ports import free_port
from infra.provisioning import provision_topics
from projections.clickhouse.client import Database
from schemas import events as e
from schemas.examples import EXAMPLES
from streams.log.kafka.log import KafkaLog
from streams.log.steps import Output
from tests.infra.usage import Usage
from tests.projections.test_processes import Running, eventually
from tests.projections.test_rebuild import stream, total

pytestmark = [pytest.mark.servers, pytest.mark.timeout(240)]


class Operator:
    """A namespace with records that the projection has written, and commands on it."""

    def __init__(self, deployment, folder):
        self.deployment = deployment
        self.database = Database(deployment.clickhouse_url, deployment.database)
        self.log = KafkaLog(deployment.kafka_bootstrap, deployment.namespace, "test")
        self.views = Running("views", deployment.environment(), folder)
        self.append(stream(200))
        told = "SELECT toInt64(sum(next_offset)) FROM progress FINAL WHERE topic = 'usage'"
        eventually(lambda: self.database.query(told) == [(200,)], "records")

    def append(self, events):
        writer = self.log.writer("test")
        for event in events:
            writer.append(Output(event=event))
        writer.close(20)

    def lose_topic(self, name):
        """The topic is gone with all that was in it, and made anew."""
        self.views.end(signal.SIGKILL)
        self.log.close()
        admin, full = KafkaAdmin(self.deployment.kafka_bootstrap), self.deployment.topic(name)
        admin.delete([full])
        eventually(lambda: full not in admin.topics(), "the topic is gone")
        provision_topics(self.deployment.settings())
        self.log = KafkaLog(self.deployment.kafka_bootstrap, self.deployment.namespace, "test")

    def command(self, *arguments):
        return [sys.executable, "-m", "infra", *arguments]

    def turnlog(self, *arguments):
        done = subprocess.run(
            self.command(*arguments),
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        return done, lines

    @property
    def environment(self):
        return os.environ | self.deployment.environment()

    def close(self):
        self.views.end(signal.SIGKILL)
        self.log.close()
        self.database.close()


@pytest.fixture
def operator(provisioned, tmp_path):
    made = Operator(provisioned, tmp_path)
    yield made
    made.close()


def test_rows_that_are_lost_are_shown_repaired_and_rebuilt(operator, tmp_path):
    before = total(operator.database)
    done, lines = operator.turnlog("reconcile", "--json")
    assert (done.returncode, lines[-1]["reconciled"]["found"]) == (1, 200), "of replies that were never stored"
    assert {line["difference"]["kind"] for line in lines[:-1]} == {"no_reply"}
    operator.database.erase("usage_records", "output_tokens BETWEEN 5 AND 8")
    done, lines = operator.turnlog("reconcile", "--no-replies", "--json")
    assert (done.returncode, [line["difference"]["kind"] for line in lines[:-1]]) == (1, ["missing"] * 4)
    done, _ = operator.turnlog("reconcile", "--no-replies", "--repair")
    assert done.returncode == 0
    assert done.stdout.count("usage_records missing a") == 4
    assert "4 differences, 0 left; limits were not compared: they are being made again from the log." in done.stdout
    assert total(operator.database) == before
    operator.database.erase("usage_records", "output_tokens > 100")
    done, lines = operator.turnlog("rebuild", "billing", "--json")
    assert done.returncode == 0, done.stderr
    assert lines[-1]["rebuilt"]["loaded"]["records"] == 200
    assert lines[-1]["rebuilt"]["compared"][0]["differences"] == 99
    assert total(operator.database) == before
    operator.append(stream(220)[200:])
    eventually(lambda: total(operator.database)[0] == 220, "the projection writes the new table")
    done, lines = operator.turnlog("archive", "usage", "--to", str(tmp_path / "kept"), "--json")
    assert lines[-1]["archived"]["records"] == 220
    done, _ = operator.turnlog("archive", "usage", "--to", str(tmp_path / "kept"))
    assert "Archived 0 records" in done.stdout
    done, lines = operator.turnlog("rebuild", "usage_records", "--archive", str(tmp_path / "kept"), "--json")
    assert (done.returncode, lines[-1]["rebuilt"]["compared"][0]["differences"]) == (0, 0)


def test_a_log_that_was_made_anew_takes_nothing_from_the_bills(operator):
    before = total(operator.database)
    operator.lose_topic("usage")
    work = (("reconcile", "--repair"), ("rebuild", "billing"), ("rebuild", "billing", "--check"))
    for arguments in work:
        done, _ = operator.turnlog(*arguments)
        assert (done.returncode, done.stdout) == (1, "")
        assert "Error: The views have read usage[0] up to offset " in done.stderr
        assert ", and the log ends at 0: the topic was lost and made anew" in done.stderr
        assert total(operator.database) == before
    operator.append([replace(one, reply_id=f"new_{one.reply_id}") for one in stream(400)])
    Usage(operator.deployment).project()
    before = total(operator.database)
    assert before[0] == 600
    for arguments in work:
        done, _ = operator.turnlog(*arguments)
        assert done.returncode == 1
        assert "The views have two rows each at 200 places of topic usage" in done.stderr
        assert total(operator.database) == before
    done, _ = operator.turnlog("reconcile", "--no-replies", "--no-limits", "--repair", "--log-made-anew")
    assert done.returncode == 0, done.stderr
    assert "200 differences, 0 left" in done.stdout
    assert total(operator.database)[0] == 400
    assert operator.turnlog("rebuild", "billing")[0].returncode == 0


def test_messages_that_were_lost_are_noticed_too(operator):
    operator.append([replace(EXAMPLES[e.ReplyStored], reply_id=f"rep_{n}") for n in range(30)])
    told = "SELECT toInt64(sum(next_offset)) FROM progress FINAL WHERE topic = 'messages'"
    eventually(lambda: operator.database.query(told) == [(30,)], "replies")
    operator.lose_topic("messages")
    for arguments in (("reconcile", "--repair"), ("rebuild", "messages")):
        done, _ = operator.turnlog(*arguments)
        assert done.returncode == 1
        assert "The views have read messages[" in done.stderr
    assert operator.turnlog("reconcile", "--no-replies")[0].returncode == 0
    assert operator.database.query("SELECT count() FROM reply_rows FINAL") == [(30,)]


def test_a_check_that_finds_differences_fails(operator):
    done, _ = operator.turnlog("rebuild", "billing", "--check")
    assert done.returncode == 0, done.stderr
    operator.database.erase("usage_records", "output_tokens = 7")
    done, _ = operator.turnlog("rebuild", "billing", "--check")
    assert done.returncode == 1
    assert "1 rows differed" in done.stdout


def test_what_cannot_be_done_is_one_sentence(operator):
    for arguments, sentence in (
        (("rebuild", "nothing"), "There is no view 'nothing' that comes from the log; there are: "),
        (("archive", "accounts", "--to", "x"), "'accounts' is no topic that can be archived"),
        (("reconcile", "--every", "soon"), "--every 'soon' is no time"),
        (("reconcile", "--days", "999999999"), "less than or equal to 3660"),
        (("reconcile", "--archive", "/nowhere"), "'/nowhere' does not exist"),
        (("archive", "usage", "--to", "/proc/x"), "/proc/x cannot be written"),
    ):
        done, _ = operator.turnlog(*arguments)
        assert done.returncode in (1, 2)
        assert sentence in " ".join(done.stderr.replace("│", " ").split()), done.stderr
        assert "Traceback" not in done.stderr
    done, _ = operator.turnlog("rebuild", "billing", "--abort")
    assert (done.returncode, done.stdout) == (0, "There was nothing to remove.\n")


def test_a_scheduled_run_repairs_again_and_again_and_serves_metrics(operator):
    port = free_port()
    options = ["--every", "1s", "--repair", "--no-replies", "--metrics-port", str(port)]
    running = subprocess.Popen(operator.command("reconcile", *options), env=operator.environment)
    try:
        before = total(operator.database)

        def metrics():
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                    lines = answer.read().decode().splitlines()
            except OSError:
                return {}
            return {line.split(" ")[0]: float(line.split(" ")[1]) for line in lines if not line.startswith("#")}

        eventually(lambda: metrics().get("turnlog_reconcile_records") == 200, "a first run")
        operator.database.erase("usage_records", "output_tokens = 7")
        eventually(lambda: total(operator.database) == before, "repaired")
        eventually(lambda: metrics()["turnlog_reconcile_differences"] == 0, "told")
        assert time.time() - metrics()["turnlog_reconcile_last_run_seconds"] < 60
    finally:
        running.terminate()
        assert running.wait(60) == 0


def test_a_rebuild_that_is_killed_again_and_again_goes_on_and_a_second_one_is_refused_while_it_lives(operator):
    operator.append(stream(20_000)[200:])
    eventually(lambda: total(operator.database)[0] == 20_000, "records")
    before = total(operator.database)
    command = operator.command("rebuild", "billing", "--json")

    def has_begun():
        return operator.database.query(
            "SELECT count() FROM system.tables WHERE name = 'rebuild__usage_records' AND database = currentDatabase()"
        ) == [(1,)]

    running = subprocess.Popen(command, env=operator.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    eventually(has_begun, "the rebuild has begun")
    running.send_signal(signal.SIGSTOP)
    done, _ = operator.turnlog("rebuild", "billing")
    assert (done.returncode, f"process {running.pid} rebuilds the same tables now" in done.stderr.lower()) == (1, True)
    running.send_signal(signal.SIGKILL)
    running.wait(20)
    for after_s in (1.2, 1.5, 1.8, 2.1):
        running = subprocess.Popen(
            command, env=operator.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(after_s)
        running.send_signal(signal.SIGKILL)
        running.wait(20)
        assert total(operator.database) == before
    done, lines = operator.turnlog("rebuild", "billing", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert lines[-1]["rebuilt"]["exchanged"]
    assert total(operator.database) == before
    assert (
        operator.database.query(
            "SELECT name FROM system.tables WHERE database = currentDatabase() AND position(name, '__') > 0"
        )
        == []
    )
