"""What the chart promises, over the values in helm/actiond/ci, with Helm 4 and Helm 3."""

import functools
import json
import re
import unittest
from urllib.parse import unquote, urlsplit

import yaml

import rig
from rig import HELMS, MATRIX, NEWEST, OLDEST, Refused, Release


def over_the_matrix(test):
    @functools.wraps(test)
    def each(self):
        for name in MATRIX:
            with self.subTest(name):
                test(self, name)

    return each


class EveryValuesFile(unittest.TestCase):
    @over_the_matrix
    def test_passes_the_strict_lint_of_both_helms(self, name):
        for binary in HELMS:
            rig.helm(binary, "lint", "--strict", str(rig.CHART), "--values", str(MATRIX[name]))

    @over_the_matrix
    def test_renders_the_same_with_both_helms(self, name):
        key = lambda item: (item["kind"], item["metadata"]["name"])
        new, old = (sorted(rig.objects(name, binary=binary), key=key) for binary in HELMS)
        self.assertEqual(new, old)

    @over_the_matrix
    def test_is_valid_for_the_oldest_and_the_newest_kubernetes(self, name):
        for version in (OLDEST, NEWEST):
            for item in rig.objects(name, version=version):
                with self.subTest(version=version, kind=item["kind"], object=item["metadata"]["name"]):
                    self.assertIsNone(rig.problems(item, version))

    @over_the_matrix
    def test_gives_the_program_a_config_that_it_accepts(self, name):
        release = Release(name)
        for _, _, owner in release.pods():
            status, said = release.check(owner)
            self.assertEqual(status, 0, f"{owner}: {said}\n{release.config(owner)}")

    @over_the_matrix
    def test_has_every_variable_that_its_config_asks_for(self, name):
        release = Release(name)
        for _, _, owner in release.pods():
            self.assertLessEqual(release.variables(owner), release.environment(owner).keys(), owner)

    @over_the_matrix
    def test_names_no_object_twice_and_every_reference_exists(self, name):
        release = Release(name)
        names = [(item["kind"], item["metadata"]["name"]) for item in release.objects if "hook" not in json.dumps(item["metadata"])]
        self.assertEqual(len(names), len(set(names)))
        for item in release.all("ScaledObject") + release.all("HorizontalPodAutoscaler"):
            release.one("Deployment", item["spec"]["scaleTargetRef"]["name"])
        for item in release.all("PodDisruptionBudget") + release.all("Service"):
            wanted = item["spec"]["selector"]
            wanted = wanted.get("matchLabels", wanted).items()
            self.assertTrue(any(wanted <= meta.get("labels", {}).items() for meta, _, _ in release.pods()), item["metadata"]["name"])

    @over_the_matrix
    def test_keeps_to_the_restricted_standard_and_has_no_token(self, name):
        for _, spec, owner in Release(name).pods():
            self.assertIs(spec["automountServiceAccountToken"], False)
            self.assertEqual(spec["securityContext"]["runAsNonRoot"], True)
            self.assertEqual(spec["securityContext"]["seccompProfile"], {"type": "RuntimeDefault"})
            container = next(c for c in spec["containers"] if c["name"] in ("actiond", "migrate", "send"))
            context = container["securityContext"]
            self.assertEqual(context["capabilities"], {"drop": ["ALL"]}, owner)
            self.assertIs(context["allowPrivilegeEscalation"], False)
            self.assertIs(context["readOnlyRootFilesystem"], True)

    @over_the_matrix
    def test_shows_no_credential_outside_of_secrets(self, name):
        values = yaml.safe_load(MATRIX[name].read_text())
        passwords = [str(values.get(part, {}).get("password", "")) for part in ("rabbitmq", "postgresql")]
        passwords += [str(v) for v in values.get("secrets", {}).values()]
        for item in Release(name).objects:
            if item["kind"] != "Secret":
                shown = json.dumps(item)
                for password in passwords:
                    # Short ones such as `guest` are words too.
                    self.assertFalse(len(password) > 8 and password in shown, item["metadata"]["name"])


class Numbers(unittest.TestCase):
    """Helm holds every number as a float."""

    def test_are_plain_digits_in_every_manifest(self):
        for name in MATRIX:
            for binary in HELMS:
                self.assertNotRegex(rig.text(name, binary=binary), r"\d[eE]\+\d", name)

    def test_arrive_as_they_were_written(self):
        for binary in HELMS:
            release = Release("numbers", binary=binary)
            self.assertEqual(release.container("rel-actiond-worker")["image"], "actiond:20261130")
            config = yaml.safe_load(release.config("rel-actiond-worker"))
            self.assertEqual(config["ingress"]["max_body"], 4194304)
            self.assertEqual(config["functions"][0]["parameters"]["properties"]["count"]["maximum"], 900719925474099)
            annotations = release.one("Deployment", "rel-actiond-ingress")["spec"]["template"]["metadata"]["annotations"]
            self.assertEqual(annotations["example.com/number"], "123456789")
            self.assertEqual((annotations["example.com/half"], annotations["example.com/yes"]), ("0.5", "true"))
            self.assertEqual(release.environment("rel-actiond-worker")["LIMIT"], "1048576")
            self.assertEqual(release.secret("rel-actiond")["ACTIOND_AMQP_URL"], "amqp://12345678:20261130@rabbitmq:5672/1000000")
            self.assertIn("//1000000:12345678901@postgresql:5432/2000000?", release.secret("rel-actiond")["ACTIOND_DATABASE_URL"])
            scaled = release.one("ScaledObject")["spec"]
            self.assertEqual((scaled["maxReplicaCount"], scaled["triggers"][0]["metadata"]["value"]), (1000000, "1000000"))

    def test_a_tag_that_a_number_cannot_carry_is_refused(self):
        for binary in HELMS:
            self.assertIn("actiond:1.10", rig.text("minimal", "--set-string", "image.tag=1.10", binary=binary))
            with self.assertRaisesRegex(Refused, "image.*tag"):
                rig.text("minimal", "--set-json", "image.tag=1.10", binary=binary)

    def test_that_helm_would_change_are_refused(self):
        for binary in HELMS:
            with self.assertRaisesRegex(Refused, "more than 15 digits"):
                rig.text("minimal", "--set-json", "config.worker.lease=9007199254740993", binary=binary)


class Credentials(unittest.TestCase):
    def test_odd_characters_come_out_as_they_went_in(self):
        values = yaml.safe_load(MATRIX["odd-passwords"].read_text())
        for binary in HELMS:
            release = Release("odd-passwords", binary=binary)
            environment = release.environment("rel-actiond-worker")
            amqp, database = urlsplit(environment["ACTIOND_AMQP_URL"]), urlsplit(environment["ACTIOND_DATABASE_URL"])
            self.assertEqual((amqp.scheme, amqp.hostname, amqp.port), ("amqps", "rabbitmq", 5671))
            for url, part in ((amqp, "rabbitmq"), (database, "postgresql")):
                self.assertEqual(unquote(url.username), values[part]["username"])
                self.assertEqual(unquote(url.password), values[part]["password"])
            self.assertEqual(unquote(amqp.path[1:]), values["rabbitmq"]["vhost"])
            self.assertNotIn("/", amqp.path[1:])
            self.assertEqual(environment["OPENAI_API_KEY"], values["secrets"]["OPENAI_API_KEY"])
            self.assertEqual(environment["ACTIOND_ADMIN_TOKEN"], values["admin"]["token"])
            host = urlsplit(release.secret("rel-actiond-worker-keda")["host"])
            self.assertEqual(unquote(host.password), values["rabbitmq"]["password"])
            self.assertEqual((host.scheme, host.port, host.path), ("https", 15671, ""))

    def test_the_vhost_slash_is_encoded_for_the_program_and_plain_for_keda(self):
        release = Release("vhost-slash")
        self.assertEqual(release.secret("rel-actiond")["ACTIOND_AMQP_URL"], "amqp://guest:guest@rabbitmq:5672/%2F")
        self.assertEqual(release.one("ScaledObject")["spec"]["triggers"][0]["metadata"]["vhostName"], "/")

    def test_existing_secrets_are_referred_to_and_none_is_made(self):
        release = Release("full")
        self.assertEqual(release.all("Secret"), [])
        references = {e["name"]: e["valueFrom"]["secretKeyRef"] for e in release.container("answers-worker")["env"] if "secretKeyRef" in e.get("valueFrom", {})}
        self.assertEqual(references["ACTIOND_AMQP_URL"], {"name": "broker", "key": "amqp"})
        self.assertEqual(references["ACTIOND_DATABASE_URL"], {"name": "database", "key": "uri"})
        self.assertEqual(references["ACTIOND_ADMIN_TOKEN"], {"name": "admin", "key": "token"})

    def test_the_operators_secret_makes_a_url_with_a_vhost(self):
        url = Release("rabbitmq-cluster").environment("rel-actiond-worker")["ACTIOND_AMQP_URL"]
        self.assertEqual(url, "amqp://made-up-RABBITMQ_USERNAME:made-up-RABBITMQ_PASSWORD@rel-actiond-rabbitmq.agents.svc:5672/%2F")


class Refusals(unittest.TestCase):
    """Loud, at render time, with what to do."""

    CASES = [
        (None, [], "rabbitmq is missing: set existingSecret"),
        (None, ["mode=embedded"], "the admin token is missing"),
        (None, ["mode=embedded", "admin.token=0123456789abcdef"], "config uses OPENAI_API_KEY, OPENAI_WEBHOOK_SECRET, which nothing sets"),
        ("minimal", ["worker.hpa.enabled=true", "worker.keda.enabled=true"], "worker.hpa.enabled and worker.keda.enabled cannot both be true"),
        ("minimal", ["worker.keda.enabled=true"], "worker.keda.existingSecret.name is missing"),
        ("minimal", ["rabbitmq.url=amqp://x", "rabbitmq.existingSecret.name=y"], "more than one of url, host"),
        ("minimal", ["rabbitmq.host=x"], "rabbitmq.username is missing"),
        ("minimal", ["config.queue.url=amqp://x"], "config.queue.url cannot be set"),
        ("minimal", ["config.worker.grace_period=soon"], "soon is not a duration"),
        ("minimal", ["metrics.podMonitor.enabled=true", "metrics.serviceMonitor.enabled=true"], "scraped twice"),
        ("minimal", ["expose.ingress.enabled=true"], "expose.host is missing"),
        ("minimal", ["expose.httpRoute.enabled=true", "expose.host=a.example"], "parentRefs is missing"),
        ("embedded", ["worker.hpa.enabled=true"], "worker.hpa.enabled cannot be true with mode embedded"),
        ("embedded", ["postgresql.url=postgres://x"], "postgresql is not used with mode embedded"),
        ("embedded", ["worker.pools[0].name=gpu"], "worker.pools cannot be set with mode embedded"),
        ("minimal", ["config.worker.pools[0]=gpu"], "config.worker.pools cannot be set: use worker.pools in the values"),
        ("minimal", ["config.functions[0].pool=gpu"], "config.functions[0] is pinned to pool gpu, which is not in worker.pools"),
        ("pools", ["worker.pools[1].name=gpu"], "worker.pools: gpu is listed twice"),
        ("minimal", ["worker.pools[0].name=GPU"], "name"),
        ("minimal", ["worker.pools[0].name=gpu", "worker.pools[0].replica=2"], "replica"),
        ("minimal", ["worker.pools[0].name=gpu", "worker.pools[0].keda.enabled=true"], "worker.pools, gpu: keda.existingSecret.name is missing"),
        # There is no such key: one pod is all that embedded has.
        ("embedded", ["embedded.replicas=2"], "replicas"),
        ("minimal", ["worker.replica=2"], "replica"),
        ("minimal", ["mode=cluster"], "mode"),
        ("minimal", ["admin.token=short"], "token"),
        # Commas and braces are syntax of --set: it fails instead of cutting the URL.
        ("minimal", ["postgresql.url=postgres://u:p@h/d?options=a,b{c}"], "has no value"),
    ]

    def test_are_told_by_both_helms(self):
        for name, settings, said in self.CASES:
            for binary in HELMS:
                with self.subTest(settings=settings, binary=binary), self.assertRaises(Refused) as caught:
                    rig.text(name, *[argument for s in settings for argument in ("--set", s)], binary=binary)
                self.assertIn(said, str(caught.exception))

    def test_a_url_with_commas_arrives_whole_when_it_is_escaped(self):
        text = rig.text("minimal", "--set", r"postgresql.url=postgres://u:p@h/d?options=a\,b{c}")
        self.assertIn("postgres://u:p@h/d?options=a,b{c}", text)


class Stopping(unittest.TestCase):
    def grace(self, *settings, name="minimal"):
        release = Release(name, *[argument for s in settings for argument in ("--set", s)])
        owner = "answers-worker" if name == "full" else "rel-actiond-worker"
        _, spec, _ = next(pod for pod in release.pods() if pod[2] == owner)
        return yaml.safe_load(release.config(owner))["worker"]["grace_period"], spec["terminationGracePeriodSeconds"]

    def test_the_longest_handler_timeout_decides(self):
        handler = "config.functions[0].handler."
        self.assertEqual(self.grace(), ("30s", 45))
        self.assertEqual(self.grace(name="full"), ("95s", 110))
        self.assertEqual(self.grace(handler + "timeout=1.5m"), ("95s", 110))
        self.assertEqual(self.grace(handler + "timeout=24h"), ("3600s", 3615))
        self.assertEqual(self.grace(handler + "timeout=24h", "config.worker.grace_period=2m"), ("2m", 135))
        self.assertEqual(self.grace("config.worker.grace_period=1500ms"), ("1500ms", 17))
        self.assertEqual(self.grace("worker.terminationGracePeriodSeconds=7"), ("30s", 7))

    def test_the_listener_leaves_the_service_before_it_closes(self):
        lifecycle = lambda version: Release("minimal", version=version).container("rel-actiond-ingress").get("lifecycle")
        self.assertEqual(lifecycle(NEWEST), {"preStop": {"sleep": {"seconds": 5}}})
        self.assertIsNone(lifecycle(OLDEST))

    def test_a_rollout_adds_before_it_removes(self):
        for deployment in Release("minimal").all("Deployment"):
            self.assertEqual(deployment["spec"]["strategy"]["rollingUpdate"], {"maxSurge": 1, "maxUnavailable": 0})

    def test_pods_are_replaced_when_config_or_secret_change(self):
        def sums(*settings, name="odd-passwords"):
            annotations = Release(name, *settings).one("Deployment", "rel-actiond-worker")["spec"]["template"]["metadata"]["annotations"]
            return annotations["checksum/config"], annotations.get("checksum/secret")

        self.assertEqual(sums(), sums())
        self.assertNotEqual(sums()[0], sums("--set", "config.worker.lease=20s")[0])
        self.assertNotEqual(sums()[1], sums("--set", "rabbitmq.password=other")[1])


class Scaling(unittest.TestCase):
    def test_an_autoscaled_deployment_has_no_replicas_of_its_own(self):
        for name, owner, autoscaled in (("minimal", "worker", False), ("keda", "worker", True), ("hpa", "worker", True), ("hpa", "ingress", True)):
            spec = Release(name).one("Deployment", f"rel-actiond-{owner}")["spec"]
            self.assertEqual("replicas" not in spec, autoscaled, f"{name} {owner}")

    def test_keda_counts_delivered_sessions_of_the_right_queue(self):
        release = Release("keda")
        scaled = release.one("ScaledObject")["spec"]
        metadata = scaled["triggers"][0]["metadata"]
        self.assertEqual(metadata["queueName"], "eu.answers.sessions")
        self.assertEqual((metadata["protocol"], metadata["excludeUnacknowledged"]), ("http", "false"))
        self.assertEqual((scaled["minReplicaCount"], scaled["maxReplicaCount"]), (0, 40))
        self.assertEqual(scaled["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]["stabilizationWindowSeconds"], 300)
        self.assertEqual(release.secret("rel-actiond-worker-keda"), {"host": "http://actiond:secret@rabbitmq.data.svc:15672"})
        # KEDA alone reads it.
        self.assertNotIn("rel-actiond-worker-keda", json.dumps([spec for _, spec, _ in release.pods()]))

    def test_embedded_is_one_process_on_its_disk(self):
        release = Release("embedded")
        stateful = release.one("StatefulSet")
        self.assertEqual(stateful["spec"]["replicas"], 1)
        self.assertEqual(release.all("Deployment") + release.all("Job") + release.all("PodDisruptionBudget"), [])
        self.assertEqual(release.container("rel-actiond")["args"], ["serve", "--role", "all"])
        config = yaml.safe_load(release.config("rel-actiond"))
        self.assertEqual((config["queue"]["type"], config["store"]["url"]), ("embedded", "sqlite:///data/actiond.db"))


class Pools(unittest.TestCase):
    def setUp(self):
        self.release = Release("pools")

    def test_each_is_a_deployment_of_its_own_that_says_its_name(self):
        names = [item["metadata"]["name"] for item in self.release.all("Deployment")]
        self.assertEqual(names, [f"rel-actiond-{name}" for name in ("ingress", "worker", "worker-gpu", "worker-browser")])
        self.assertEqual(self.release.container("rel-actiond-worker")["args"], ["serve", "--role", "worker"])
        self.assertEqual(self.release.container("rel-actiond-worker-gpu")["args"], ["serve", "--role", "worker", "--pool", "gpu"])
        self.assertEqual(yaml.safe_load(self.release.config("rel-actiond-worker-gpu"))["worker"]["pools"], ["gpu", "browser"])
        selectors = [item["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"] for item in self.release.all("Deployment")]
        self.assertEqual(len(set(selectors)), 4)

    def test_each_is_as_the_other_workers_but_for_what_it_says(self):
        pods = {owner: spec for _, spec, owner in self.release.pods()}
        worker, gpu, browser = (pods[f"rel-actiond-worker{end}"] for end in ("", "-gpu", "-browser"))
        self.assertEqual(gpu["nodeSelector"], {"accelerator": "true"})
        self.assertNotIn("nodeSelector", worker)
        self.assertEqual([spec["terminationGracePeriodSeconds"] for spec in (worker, gpu, browser)], [140, 600, 140])
        limits = lambda owner: self.release.container(owner)["resources"]["limits"]
        self.assertEqual(limits("rel-actiond-worker-gpu"), {"nvidia.com/gpu": 1, "memory": "16Gi"})
        self.assertEqual(limits("rel-actiond-worker-browser"), limits("rel-actiond-worker"))
        self.assertEqual([c["name"] for c in gpu["containers"]], ["actiond", "draw"])
        self.assertIn({"name": "DISPLAY", "value": ":1"}, self.release.container("rel-actiond-worker-browser")["env"])
        self.assertEqual(self.release.one("Deployment", "rel-actiond-worker-browser")["spec"]["replicas"], 1)
        self.assertNotIn("replicas", self.release.one("Deployment", "rel-actiond-worker-gpu")["spec"])
        budgets = {item["metadata"]["name"]: item["spec"]["maxUnavailable"] for item in self.release.all("PodDisruptionBudget")}
        self.assertEqual(budgets, {"rel-actiond-ingress": 1, "rel-actiond-worker": "50%", "rel-actiond-worker-gpu": "50%"})

    def test_keda_follows_the_queue_of_each(self):
        scaled = {item["metadata"]["name"]: item["spec"] for item in self.release.all("ScaledObject")}
        queues = {name: spec["triggers"][0]["metadata"]["queueName"] for name, spec in scaled.items()}
        self.assertEqual(queues, {"rel-actiond-worker": "eu.answers.sessions", "rel-actiond-worker-gpu": "eu.answers.sessions.gpu"})
        gpu = scaled["rel-actiond-worker-gpu"]
        self.assertEqual((gpu["minReplicaCount"], gpu["maxReplicaCount"], gpu["pollingInterval"]), (0, 4, 15))
        self.assertEqual(gpu["fallback"], {"failureThreshold": 3, "replicas": 1})
        self.assertEqual(gpu["triggers"][0]["authenticationRef"], {"name": "rel-actiond-worker-gpu"})
        self.release.one("TriggerAuthentication", "rel-actiond-worker-gpu")
        self.assertEqual(self.release.secret("rel-actiond-worker-gpu-keda"), self.release.secret("rel-actiond-worker-keda"))

    def test_each_is_watched_and_kept_apart(self):
        wanted = self.release.one("PodMonitor")["spec"]["selector"]["matchLabels"].items()
        for name in ("worker-gpu", "worker-browser"):
            meta = next(meta for meta, _, pod in self.release.pods() if pod == f"rel-actiond-{name}")
            self.assertLessEqual(wanted, meta["labels"].items())
            policy = self.release.one("NetworkPolicy", f"rel-actiond-{name}")["spec"]
            self.assertLessEqual(policy["podSelector"]["matchLabels"].items(), meta["labels"].items())
            self.assertEqual([rule["ports"][0]["port"] for rule in policy["ingress"]], ["admin"])
            ports = [p["port"] for rule in policy["egress"] for p in rule["ports"]]
            self.assertTrue({5432, 5672, 443} <= set(ports), ports)

    def test_the_notes_say_what_each_runs(self):
        notes = rig.helm("helm4", "install", "rel", str(rig.CHART), "--dry-run=client", "--values", str(MATRIX["pools"])).split("NOTES:")[1]
        self.assertIn("Workers of pool gpu alone run draw.", notes)
        self.assertIn("Workers of pool browser alone run what is imported for them.", notes)


class Parts(unittest.TestCase):
    def test_the_migration_brings_what_it_needs_before_anything_else_is_there(self):
        for name in ("minimal", "odd-passwords"):
            release = Release(name)
            hooks = [item for item in release.objects if item["metadata"].get("annotations", {}).get("helm.sh/hook") == "pre-install,pre-upgrade"]
            job = next(item for item in hooks if item["kind"] == "Job")
            weight = lambda item: int(item["metadata"]["annotations"]["helm.sh/hook-weight"])
            needed = json.dumps(job["spec"])
            for item in hooks:
                if item is not job:
                    self.assertLess(weight(item), weight(job))
                    self.assertIn(item["metadata"]["name"], needed)
            self.assertNotIn("serviceAccountName", job["spec"]["template"]["spec"])
            # Nothing but the database's URL.
            self.assertEqual(release.environment(job["metadata"]["name"]).keys(), {"ACTIOND_CONFIG", "ACTIOND_DATABASE_URL"})

    def test_only_the_webhook_paths_are_public(self):
        release = Release("full")
        rule = release.one("Ingress")["spec"]["rules"][0]
        self.assertEqual([p["path"] for p in rule["http"]["paths"]], ["/webhooks", "/functions", "/results"])
        self.assertEqual(release.one("Ingress")["spec"]["tls"], [{"secretName": "actiond-tls", "hosts": ["actiond.example.com"]}])
        ports = [p["name"] for p in release.one("Service", "answers")["spec"]["ports"]]
        self.assertEqual(ports, ["http"])
        self.assertEqual(yaml.safe_load(release.config("answers-ingress"))["ingress"]["public_url"], "https://actiond.example.com")

    def test_the_network_policy_lets_in_what_it_names(self):
        release = Release("full")
        ingress = release.one("NetworkPolicy", "answers-ingress")["spec"]
        self.assertEqual([rule["ports"][0]["port"] for rule in ingress["ingress"]], ["http", "admin"])
        self.assertEqual(ingress["ingress"][0]["from"][0]["namespaceSelector"]["matchLabels"], {"kubernetes.io/metadata.name": "ingress-nginx"})
        ports = lambda name: [p["port"] for rule in release.one("NetworkPolicy", name)["spec"]["egress"] for p in rule["ports"]]
        self.assertEqual(ports("answers-worker"), [53, 53, 5432, 5672, 443, 8080])
        self.assertEqual(ports("answers-migrate"), [53, 53, 5432])
        self.assertEqual(release.one("NetworkPolicy", "answers-worker")["spec"]["ingress"][0]["ports"][0]["port"], "admin")
        self.assertEqual(release.one("NetworkPolicy", "answers-migrate")["spec"]["ingress"], [])

    def test_monitors_find_every_serving_pod(self):
        for name, owner in (("embedded", "rel-actiond"), ("rabbitmq-cluster", "rel-actiond-worker"), ("rabbitmq-cluster", "rel-actiond-ingress")):
            release = Release(name)
            wanted = release.one("PodMonitor")["spec"]["selector"]["matchLabels"].items()
            meta = next(meta for meta, _, pod in release.pods() if pod == owner)
            self.assertLessEqual(wanted, meta["labels"].items())
        release = Release("full")
        wanted = release.one("ServiceMonitor")["spec"]["selector"]["matchLabels"].items()
        self.assertEqual([s["metadata"]["name"] for s in release.all("Service") if wanted <= s["metadata"]["labels"].items()], ["answers-metrics"])

    def test_rules_and_board_are_those_of_deploy(self):
        for chart, deploy in (("rules.yml", "alerts/rules.yml"), ("dashboard.json", "grafana/dashboard.json")):
            self.assertEqual((rig.CHART / "files" / chart).read_text(), (rig.ROOT / "deploy" / deploy).read_text(), f"copy deploy/{deploy}")
        release = Release("full")
        self.assertEqual(release.one("PrometheusRule")["spec"], yaml.safe_load((rig.ROOT / "deploy/alerts/rules.yml").read_text()))
        board = release.one("ConfigMap", "answers-dashboard")
        self.assertEqual(json.loads(board["data"]["actiond.json"]), json.loads((rig.ROOT / "deploy/grafana/dashboard.json").read_text()))

    def test_helm_test_signs_with_the_platforms_own_secret(self):
        container = Release("full").container("answers-test")
        self.assertEqual(container["args"], ["send", "--platform=rebyte", "--url=http://answers.agents.svc:8080/webhooks/rebyte", "--session=sess_helm_test"])

    def test_the_rabbitmq_cluster_outlives_the_release(self):
        cluster = Release("rabbitmq-cluster").one("RabbitmqCluster")
        self.assertEqual(cluster["metadata"]["annotations"]["helm.sh/resource-policy"], "keep")
        self.assertEqual(cluster["spec"]["persistence"], {"storage": "10Gi", "storageClassName": "fast"})

    def test_the_notes_say_the_webhook_urls_and_the_next_command(self):
        arguments = ("install", "rel", str(rig.CHART), "--dry-run=client", "--values", str(MATRIX["full"]))
        # Helm 3 asks a cluster even then.
        notes = rig.helm("helm4", *arguments).split("NOTES:")[1]
        self.assertIn("openai: https://actiond.example.com/webhooks/openai", notes)
        self.assertIn("helm test rel", notes)


class Documents(unittest.TestCase):
    def test_the_readme_can_be_followed(self):
        readme = (rig.CHART / "README.md").read_text()
        values = re.search(r"```yaml\n(.*?)```", readme, re.S)[1]
        path = rig.TOOLS / "readme-values.yaml"
        path.write_text(re.sub(r"(?m)^   ", "", values))
        release = Release(None, "--values", str(path), namespace="actiond")
        status, said = release.check("rel-actiond-worker")
        self.assertEqual(status, 0, said)
        given = set(re.findall(r"--from-literal=(\w+)", readme))
        self.assertLessEqual(release.variables("rel-actiond-worker"), given)

    def test_the_schema_knows_every_value_and_no_other(self):
        schema = json.loads((rig.CHART / "values.schema.json").read_text())
        values = yaml.safe_load((rig.CHART / "values.yaml").read_text())

        def compare(path, schema_here, value):
            if "$ref" in schema_here:
                schema_here = schema["definitions"][schema_here["$ref"].rsplit("/", 1)[1]]
            if isinstance(value, dict) and schema_here.get("additionalProperties") is False:
                missing = set(schema_here["properties"]) - set(value) - {"global", "claims", "requests", "limits"}
                self.assertEqual(missing, set(), f"{path}: in the schema, not in values.yaml")
                for key, inner in value.items():
                    compare(f"{path}.{key}", schema_here["properties"][key], inner)

        compare("values", schema, values)


if __name__ == "__main__":
    unittest.main()
