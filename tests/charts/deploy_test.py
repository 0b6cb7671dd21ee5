"""What lies in deploy/: compose.yaml holds together, the bill of materials is true, and one version stands everywhere."""

import json
import os
import re
import subprocess
import tomllib
import unittest

import yaml

import rig

DEPLOY = rig.ROOT / "deploy"
SERVICES = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]


def filled(text):
    """${NAME:-default} as compose fills it from an empty environment."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", lambda match: match[1], str(text))


class Compose(unittest.TestCase):
    def test_every_mounted_file_is_there(self):
        for name, service in SERVICES.items():
            for volume in service.get("volumes", []):
                source = volume.split(":")[0]
                if source.startswith("."):
                    self.assertTrue((DEPLOY / source).exists(), f"{name}: {source}")

    def test_the_config_is_accepted_in_every_actiond_service(self):
        for name in ("ingress", "worker"):
            environment = {key: filled(value) for key, value in SERVICES[name]["environment"].items()}
            done = subprocess.run([rig.ACTIOND, "check", "--config", DEPLOY / "actiond.example.yaml"], env=environment, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            hosts = set(re.findall(r"@(\w+):", " ".join(environment.values())))
            self.assertEqual(hosts, {"rabbitmq", "postgresql"})
            self.assertLessEqual(hosts, SERVICES.keys())

    def test_the_commands_exist(self):
        for name in ("ingress", "worker", "sandbox"):
            command = SERVICES[name]["command"]
            done = subprocess.run([rig.ACTIOND, *command, "--help"], env=os.environ, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_the_sandbox_and_the_workers_agree(self):
        sandbox, worker = SERVICES["sandbox"]["environment"], SERVICES["worker"]["environment"]
        self.assertEqual(sandbox["ACTIOND_SANDBOX_WEBHOOK_SECRET"], worker["SANDBOX_WEBHOOK_SECRET"])
        self.assertEqual(sandbox["ACTIOND_SANDBOX_API_KEY"], worker["SANDBOX_API_KEY"])

    def test_nothing_is_open_to_other_machines(self):
        for name, service in SERVICES.items():
            for port in service.get("ports", []):
                self.assertTrue(port.startswith("127.0.0.1:"), f"{name}: {port}")

    def test_prometheus_scrapes_services_that_are_there(self):
        jobs = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())["scrape_configs"]
        names = [name for job in jobs for sd in job.get("dns_sd_configs", []) for name in sd["names"]]
        targets = [t.split(":")[0] for job in jobs for sc in job.get("static_configs", []) for t in sc["targets"]]
        self.assertLessEqual(set(names + targets), SERVICES.keys())


class Image(unittest.TestCase):
    def test_the_bill_of_materials_has_every_crate_with_the_checksum_of_the_lock_file(self):
        bill = json.loads(subprocess.run([DEPLOY / "sbom"], capture_output=True, text=True, check=True).stdout)
        locked = {(p["name"], p["version"]): p.get("checksum") for p in tomllib.loads((rig.ROOT / "Cargo.lock").read_text())["package"]}
        components = {(c["name"], c["version"]): c for c in bill["components"]}
        self.assertEqual(len(components), len(bill["components"]))
        for key, component in components.items():
            self.assertEqual(component["hashes"][0]["content"], locked[key])
            self.assertTrue(component["licenses"][0]["expression"])
        manifest = tomllib.loads((rig.ROOT / "Cargo.toml").read_text())
        self.assertLessEqual(manifest["dependencies"].keys(), {name for name, _ in components})
        self.assertNotIn("proptest", {name for name, _ in components})

    def test_one_version_stands_everywhere(self):
        version = tomllib.loads((rig.ROOT / "Cargo.toml").read_text())["package"]["version"]
        chart = yaml.safe_load((rig.CHART / "Chart.yaml").read_text())
        dockerfile = (DEPLOY / "Dockerfile").read_text()
        self.assertEqual(chart["appVersion"], version)
        self.assertEqual(re.findall(r"ARG VERSION=(\S+)|-t actiond:(\S+)", dockerfile), [("", version), (version, "")])
        self.assertEqual({SERVICES[name]["image"] for name in ("ingress", "worker", "sandbox")}, {f"actiond:{version}"})

    def test_the_dockerfile_is_clean(self):
        hadolint = rig.TOOLS / "venv" / "bin" / "hadolint"
        done = subprocess.run([hadolint, DEPLOY / "Dockerfile"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout)


if __name__ == "__main__":
    unittest.main()
