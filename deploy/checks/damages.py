"""Planted faults: each must be found, with these words in the message."""

COMPOSE = "deploy/compose/compose.yaml"
SERVER = "deploy/compose/server.toml"
WORKERS = "deploy/kubernetes/base/workers.yaml"
FRONTEND = "deploy/kubernetes/base/frontend.yaml"
CONFIG = "deploy/kubernetes/base/config.yaml"
ETCD = "deploy/kubernetes/base/etcd.yaml"
SECRET = "deploy/kubernetes/base/secret.yaml"
BASE = "deploy/kubernetes/base/kustomization.yaml"
SCALING = "deploy/kubernetes/autoscaling/kustomization.yaml"
NETWORK = "deploy/kubernetes/base/network.yaml"
SCALER = "deploy/kubernetes/autoscaling/autoscaler.yaml"

# Name, file, text, text in its place, words of the message.
STATIC = [
    ("misspelt field of compose", COMPOSE, "  stop_grace_period: 40s\n  mem_limit: ${SERVER", "  stop_grace_time: 40s\n  mem_limit: ${SERVER", "stop_grace_time"),
    ("wrong indentation in compose", COMPOSE, "    retries: 3\n    start_period: 120s", "    retries: 3\n  start_period: 120s", "start_period"),
    ("key that occurs twice", COMPOSE, "  restart: unless-stopped\n  stop_grace_period: 40s\n  mem_limit: ${SERVER", "  restart: unless-stopped\n  restart: always\n  stop_grace_period: 40s\n  mem_limit: ${SERVER", "occurs twice"),
    ("unknown flag of the server", COMPOSE, "--prefix-limit=", "--prefix-size=", "no flag --prefix-size"),
    ("unknown flag of the worker", COMPOSE, "--served-model-name=", "--served-name=", "no flag --served-name"),
    ("unknown flag of the front end", COMPOSE, "--migration-limit=3", "--migrations=3", "no flag --migrations"),
    ("lost requests of dead workers", COMPOSE, "--migration-limit=3", "--migration-limit=0", "--migration-limit is 0"),
    ("other block size", COMPOSE, "--kv-cache-block-size=32", "--kv-cache-block-size=16", "a block of the server has 32"),
    ("port of the healthcheck", COMPOSE, "/dev/tcp/127.0.0.1/8080", "/dev/tcp/127.0.0.1/8081", "asks port 8081"),
    ("path of the healthcheck", COMPOSE, "GET /ready HTTP", "GET /healthz HTTP", "/healthz instead of /ready"),
    ("port of gRPC", SERVER, "port = 50051", "port = 50052", "--server has port 50051"),
    ("grace period shorter than the drain", COMPOSE, "  stop_grace_period: 40s\n  mem_limit: ${SERVER", "  stop_grace_period: 20s\n  mem_limit: ${SERVER", "killed after 20 s"),
    ("longer drain than the grace period", SERVER, "drain_timeout_s = 30", "drain_timeout_s = 60", "takes up to 60 s"),
    ("front end open to the network", COMPOSE, '"127.0.0.1:8000:8000"', '"8000:8000"', "every address of the host"),
    ("other discovery folder", COMPOSE, "      DYN_FILE_KV: /discovery\n", "      DYN_FILE_KV: /tmp/discovery\n", "differ in DYN_FILE_KV"),
    ("unknown variable of Dynamo", COMPOSE, "    DYN_SYSTEM_PORT:", "    DYN_SYSTEMS_PORT:", "no variable DYN_SYSTEMS_PORT"),
    ("unknown variable of the server", COMPOSE, "    RUVLLM_CONFIG:", "    RUVLLM_CONFIGURATION:", "no variable RUVLLM_CONFIGURATION"),
    ("keys without a mount", COMPOSE, "    - ./keys:/run/keys:ro\n", "", "nothing is mounted at /run/keys/prefix.key"),
    ("folder without a mount", COMPOSE, "--model=/models/current/", "--model=/model/current/", "nothing is mounted at /model/current/"),
    ("writable root", COMPOSE, "  user: \"65532:65532\"\n  read_only: true\n  tmpfs: [/tmp]\n  cap_drop: [ALL]\n  security_opt: [\"no-new-privileges:true\"]\n\nservices", "  user: \"65532:65532\"\n  tmpfs: [/tmp]\n  cap_drop: [ALL]\n  security_opt: [\"no-new-privileges:true\"]\n\nservices", "not hardened: read_only"),
    ("floating image tag", COMPOSE, "image: ruvllm:0.1.0", "image: ruvllm:latest", "no fixed tag"),
    ("worker before its server", COMPOSE, ", depends_on: {server-2: {condition: service_healthy, restart: true}}", "", "does not wait for server-2"),
    ("network of another pod", COMPOSE, 'worker-3: {<<: *worker, network_mode: "service:pod-3"', 'worker-3: {<<: *worker, network_mode: "service:pod-2"', "does not wait for server-2"),
    ("requests cut before the drain", WORKERS, 'GRACE_PERIOD_SECS, value: "30"', 'GRACE_PERIOD_SECS, value: "5"', "requests are cut before"),
    ("misspelt field of Kubernetes", WORKERS, "terminationGracePeriodSeconds: 100", "terminationGracePeriodSecond: 100", "terminationGracePeriodSecond"),
    ("wrong indentation in Kubernetes", WORKERS, "            httpGet: {path: /ready, port: http}\n            periodSeconds: 2", "            httpGet: {path: /ready, port: http}\n          periodSeconds: 2", "mapping values are not allowed"),
    ("field at the wrong depth", WORKERS, "          restartPolicy: Always\n", "          securityContexts: {}\n          restartPolicy: Always\n", "securityContexts"),
    ("probe inside of another", WORKERS, "          livenessProbe:\n            httpGet: {path: /live, port: system}", "            livenessProbe: {}\n          livenessProbe:\n            httpGet: {path: /live, port: system}", "livenessProbe"),
    ("wrong type in Kubernetes", WORKERS, "replicas: 3", 'replicas: "3"', "replicas"),
    ("missing field of Kubernetes", FRONTEND, "  selector:\n    matchLabels: *labels\n  strategy", "  strategy", "selector"),
    ("grace period of the pod", WORKERS, "terminationGracePeriodSeconds: 100", "terminationGracePeriodSeconds: 60", "killed after 60 s"),
    ("preStop beyond the grace period", FRONTEND, '[sleep, "5"]', '[sleep, "20"]', "takes up to 50 s"),
    ("path of the readiness probe", WORKERS, "readinessProbe:\n            httpGet: {path: /ready", "readinessProbe:\n            httpGet: {path: /health", "/health instead of /ready"),
    ("liveness that asks for readiness", WORKERS, "livenessProbe:\n            httpGet: {path: /health, port: http}", "livenessProbe:\n            httpGet: {path: /ready, port: http}", "/ready instead of /health"),
    ("impatient liveness probe", WORKERS, "            timeoutSeconds: 5\n            failureThreshold: 6\n          resources:\n            requests: {cpu: \"4\"", "            timeoutSeconds: 5\n            failureThreshold: 1\n          resources:\n            requests: {cpu: \"4\"", "restarts after 10 s"),
    ("name of a probe's port", WORKERS, "startupProbe:\n            httpGet: {path: /health, port: system}", "startupProbe:\n            httpGet: {path: /health, port: sytem}", "'sytem', which is not declared"),
    ("port of the container", WORKERS, "{name: grpc, containerPort: 50051}", "{name: grpc, containerPort: 50050}", "its ports are"),
    ("key of a ConfigMap", WORKERS, "subPath: server.toml", "subPath: server.tml", "no key 'server.tml'"),
    ("key of a Secret", SECRET, "  prefix.key: <", "  prefix_key: <", "no key 'prefix.key'"),
    ("prefix key from the secret itself", WORKERS, "--prefix-key=/run/ruvllm/prefix.key", "--prefix-key=/etc/ruvllm/keys/keys.toml", "has the mode 0440"),
    ("read-only prefix folder", WORKERS, "{name: cache, mountPath: /var/lib/ruvllm}", "{name: cache, mountPath: /var/lib/ruvllm, readOnly: true}", "mounted read-only"),
    ("memory without a limit", WORKERS, "limits: {memory: 8Gi}", "limits: {ephemeral-storage: 8Gi}", "not hardened: limits.memory"),
    ("container as root", FRONTEND, "        runAsNonRoot: true\n", "", "not hardened: runAsNonRoot"),
    ("address of the discovery", CONFIG, "etcd-1.etcd:2379", "etcd-1.etcd:2378", "etcd-1.etcd:2378, which no Service has"),
    ("member of the discovery", CONFIG, "etcd-2.etcd:2379", "etcd-3.etcd:2379", "etcd-3.etcd:2379, which no Service has"),
    ("port of the discovery", ETCD, "port: 2379, targetPort: client", "port: 2377, targetPort: client", "etcd:2379, which no Service has"),
    ("selector of a Service", FRONTEND, "  selector:\n    app.kubernetes.io/name: frontend\n  ports", "  selector:\n    app.kubernetes.io/name: front-end\n  ports", "selects no pod"),
    ("port of a NetworkPolicy", NETWORK, "{protocol: TCP, port: client}", "{protocol: TCP, port: clients}", "refers to the port clients"),
    ("resource that is not listed", BASE, "  - network.yaml\n", "", "network.yaml is not listed"),
    ("target of the autoscaler", SCALER, "kind: Deployment, name: worker", "kind: Deployment, name: workers", "Deployment workers, which does not exist"),
    ("feature of the image", "deploy/Containerfile", "ARG FEATURES=grpc", "ARG FEATURES=grcp", "no feature grcp"),
    ("base image without a version", "deploy/worker/Containerfile", "python:3.11-slim-bookworm AS build", "python AS build", "has no version"),
]

# Faults that only a server that runs can show.
LIVE = [
    ("unknown key of the configuration", SERVER, "requests = 64", "request = 64", "request"),
    ("key of the configuration in Kubernetes", CONFIG, "    drain_timeout_s = 30", "    drain_timout_s = 30", "drain_timout_s"),
    ("value of a flag", COMPOSE, "--prefix-cache=spill", "--prefix-cache=spil", "spil"),
    ("keys without a scope", COMPOSE, "--scope inference --scope metrics", "--scope inference", "PERMISSION_DENIED"),
    ("unknown scope", SECRET, "--scope inference --scope metrics", "--scope inference --scope metric", "metric"),
    ("command of the healthcheck", COMPOSE, "head -n 1 <&3 | grep -q ' 200 '", "head -n 1 <&3 | grep -q ' 201 '", "healthcheck"),
    ("mode of the copied prefix key", WORKERS, '[-m, "0400"', '[-m, "0440"', "prefix"),
    ("metric of the autoscaler", SCALER, "ruvllm_requests_waiting", "ruvllm_requests_queued", "ruvllm_requests_queued"),
    ("metric in a comment", SCALING, "ruvllm_requests_waiting", "ruvllm_waiting_requests", "ruvllm_waiting_requests"),
]
