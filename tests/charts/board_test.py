"""The queries of the board and of the alerts against a real Prometheus that scrapes the real program."""

import contextlib
import json
import pathlib
import re
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.parse
import urllib.request

import yaml

import rig

SECRET = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
# What one answered call on one machine does not show: there is no broker, nothing waits and nothing is lost.
QUIET = {"actiond_broker_up", "actiond_dead", "actiond_oldest_pending_seconds", "actiond_unknown_function_total", "actiond_swept_sessions_total", "actiond_pool_sessions", "actiond_pool_workers"}
PATIENCE = 30


def board():
    """(title of the panel, query) of every query."""
    panels = json.loads((rig.ROOT / "deploy/grafana/dashboard.json").read_text())["panels"]
    return [(panel["title"], target["expr"]) for panel in panels for target in panel.get("targets", [])]


def alerts():
    groups = yaml.safe_load((rig.ROOT / "deploy/alerts/rules.yml").read_text())["groups"]
    return [(rule["alert"], rule["expr"]) for group in groups for rule in group["rules"]]


def names(query):
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in re.findall(r"\bactiond_[a-z_]+", query)}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def get(url, headers=None, body=None):
    request = urllib.request.Request(url, data=body and json.dumps(body).encode(), headers=headers or {})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.read().decode()


def wait_for(what, question):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            if (answer := question()):
                return answer
        time.sleep(0.1)
    raise AssertionError(f"waited {PATIENCE} s for {what}")


class Board(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        stack = contextlib.ExitStack()
        cls.addClassCleanup(stack.close)
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ingress, admin, sandbox, prometheus = (free_port() for _ in range(4))
        (folder / "actiond.yaml").write_text(json.dumps({
            "ingress": {"listen": f"127.0.0.1:{ingress}"},
            "admin": {"listen": f"127.0.0.1:{admin}"},
            "store": {"url": f"sqlite://{folder}/actiond.db"},
            "platforms": [{"name": "sandbox", "type": "agents_api", "base_url": f"http://127.0.0.1:{sandbox}/v1", "api_key": "sk-sandbox", "webhook": {"secrets": [SECRET]}}],
            "functions": [{"name": "echo", "handler": {"type": "echo"}}],
        }))
        (folder / "prometheus.yml").write_text(json.dumps({
            "global": {"scrape_interval": "500ms", "evaluation_interval": "1s"},
            "rule_files": [str(rig.ROOT / "deploy/alerts/rules.yml")],
            "scrape_configs": [{"job_name": "actiond", "static_configs": [{"targets": [f"127.0.0.1:{admin}"]}]}],
        }))

        def start(*command):
            log = stack.enter_context(open(folder / f"{pathlib.Path(command[0]).name}-{command[1].strip('-')[:7]}.log", "w"))
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
            stack.callback(process.wait)
            stack.callback(process.terminate)

        start(rig.ACTIOND, "sandbox", "--listen", f"127.0.0.1:{sandbox}", "--webhook-url", f"http://127.0.0.1:{ingress}/webhooks/sandbox", "--webhook-secret", SECRET)
        start(rig.ACTIOND, "serve", "--config", "actiond.yaml")
        start(rig.TOOLS / "prometheus", f"--config.file={folder}/prometheus.yml", f"--web.listen-address=127.0.0.1:{prometheus}", f"--storage.tsdb.path={folder}/tsdb", "--log.level=warn")
        cls.base = f"http://127.0.0.1:{prometheus}"
        cls.admin = f"http://127.0.0.1:{admin}"
        wait_for("actiond", lambda: get(f"{cls.admin}/health/ready"))
        wait_for("prometheus", lambda: get(f"{cls.base}/-/ready"))
        headers = {"Authorization": "Bearer sk-sandbox", "OpenAI-Beta": "agents=v1", "Content-Type": "application/json"}
        answered = lambda n: lambda: f'actiond_submissions_total{{outcome="accepted",platform="sandbox"}} {n}' in get(f"{cls.admin}/metrics")
        for n in (1, 2):
            wait_for("the sandbox", lambda: get(f"http://127.0.0.1:{sandbox}/v1/agents/sessions", headers, {"agent": {"model": "scripted"}, "input": 'echo {"text":"a"}'}))
            wait_for("the result", answered(n))
            # A rate needs the counter before and after.
            wait_for("a scrape", lambda: cls.ask(f"actiond_submissions_total == {n}"))

    @classmethod
    def ask(cls, query):
        return json.loads(get(f"{cls.base}/api/v1/query?" + urllib.parse.urlencode({"query": query})))["data"]["result"]

    def test_every_query_of_the_board_finds_what_the_program_shows(self):
        for title, query in board():
            with self.subTest(title, query=query):
                for name, value in {"$namespace": ".*", "$platform": ".*", "$__rate_interval": "1m"}.items():
                    query = query.replace(name, value)
                found = self.ask(query)
                self.assertTrue(found or names(query) & QUIET)

    def test_every_metric_that_is_asked_for_is_one_of_the_programs(self):
        source = (rig.ROOT / "src/metrics.rs").read_text()
        for title, query in board() + alerts():
            for name in names(query) - QUIET:
                self.assertIn(name, source, title)

    def test_prometheus_takes_the_rules_and_finds_nothing_wrong(self):
        rules = json.loads(get(f"{self.base}/api/v1/rules"))["data"]["groups"][0]["rules"]
        self.assertEqual([rule["name"] for rule in rules], [name for name, _ in alerts()])
        wait_for("the first evaluation", lambda: all(r["health"] == "ok" for r in json.loads(get(f"{self.base}/api/v1/rules"))["data"]["groups"][0]["rules"]))
        self.assertEqual([rule["name"] for rule in rules if rule["state"] == "firing"], [])

    def test_the_metrics_are_as_prometheus_wants_them(self):
        done = subprocess.run([rig.TOOLS / "promtool", "check", "metrics"], input=get(f"{self.admin}/metrics"), capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)


class Runbook(unittest.TestCase):
    def test_has_a_section_for_each_alert_and_no_other(self):
        text = (rig.ROOT / "deploy/RUNBOOK.md").read_text()
        self.assertEqual(re.findall(r"(?m)^## (Actiond\w+)$", text), [name for name, _ in alerts()])

    def test_is_named_by_each_alert(self):
        for group in yaml.safe_load((rig.ROOT / "deploy/alerts/rules.yml").read_text())["groups"]:
            for rule in group["rules"]:
                self.assertEqual(rule["annotations"]["runbook"], f"RUNBOOK.md, {rule['alert']}")


if __name__ == "__main__":
    unittest.main()
