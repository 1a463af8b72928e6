//! CEL rules of pod options (`spec.runner.pod` and `spec.containerRegistry.builder.pod`).

use serde_json::{Value, json};

use crate::rules::{accepts, refuses};
use crate::space::Space;

const FIELDS: [&str; 2] = ["/runner/pod", "/containerRegistry/builder/pod"];
const OUR_SECRETS: [&str; 8] = [
    "web-run",
    "web-report",
    "other-pin",
    "web-plan",
    "web-state",
    "web-state-slot-0",
    "web-state-slot-12",
    "web-registry",
];
const OUR_SECRET: &str = "must not end in -run, -report, -pin";

#[tokio::test]
async fn ordinary_pod_options_are_accepted() {
    let space = Space::new().await;
    let options = json!({
        "resources": {"requests": {"cpu": 1, "memory": "1Gi"}, "limits": {"memory": "1.5Gi", "example.com/gpu": "1"}},
        "nodeSelector": {"pool": "terraform"},
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["a", "b"]}]},
        ]}}},
        "tolerations": [{"key": "dedicated", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}],
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
        "priorityClassName": "batch",
        "runtimeClassName": "gvisor",
        "labels": {"team": "a"},
        "annotations": {"sidecar.istio.io/inject": "true"},
        "imagePullSecrets": [{"name": "more"}],
        "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["git.test"]}],
        "dnsConfig": {"nameservers": ["10.0.0.2"], "options": [{"name": "ndots", "value": "1"}]},
        "volumes": [
            {"name": "ca", "configMap": {"name": "ca", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"name": "login", "secret": {"secretName": "running", "defaultMode": 256}},
            {"name": "both", "projected": {"sources": [{"secret": {"name": "login"}}, {"configMap": {"name": "ca"}}]}},
            {"name": "vault", "csi": {"driver": "secrets-store.csi.k8s.io", "volumeAttributes": {"a": "b"}}},
            {"name": "more", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
            {"name": "mirror", "persistentVolumeClaim": {"claimName": "mirror", "readOnly": true}},
        ],
        "volumeMounts": [{"name": "ca", "mountPath": "/etc/company", "readOnly": true, "subPath": "a"}],
        "env": [
            {"name": "A", "value": "b"},
            {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "login", "key": "token"}}},
            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        ],
        "envFrom": [{"prefix": "B_", "configMapRef": {"name": "settings"}}, {"secretRef": {"name": "login"}}],
        "terminationGracePeriodSeconds": 900,
    });
    for field in FIELDS {
        accepts(&space, field, &[options.clone(), json!({})]).await;
    }
}

#[tokio::test]
async fn reserved_names_in_pod_options_are_refused() {
    let space = Space::new().await;
    for field in FIELDS {
        let at = |option: &str| format!("{field}/{option}");
        let keys = [json!({"alustan.io/uid": "x"})];
        let message = "are reserved for labels and annotations of the operator";
        refuses(&space, &at("labels"), message, &keys).await;
        refuses(&space, &at("annotations"), message, &keys).await;
        let architecture = [json!({"kubernetes.io/arch": "arm64"})];
        refuses(
            &space,
            &at("nodeSelector"),
            "use spec.runner.architecture",
            &architecture,
        )
        .await;
        let windows = [json!({"kubernetes.io/os": "windows"})];
        let message = "kubernetes.io/os must be linux";
        refuses(&space, &at("nodeSelector"), message, &windows).await;
        let linux = [json!({"kubernetes.io/os": "linux"})];
        accepts(&space, &at("nodeSelector"), &linux).await;
        let message = "are reserved for variables of the operator";
        let variables = [json!([{"name": "A"}, {"name": "ALUSTAN_RUN", "value": "1"}])];
        refuses(&space, &at("env"), message, &variables).await;
        let prefixes = [json!([{"prefix": "ALUSTAN_", "configMapRef": {"name": "a"}}])];
        refuses(&space, &at("envFrom"), message, &prefixes).await;
        let names = [
            "build",
            "cache",
            "docker",
            "git",
            "inject",
            "registries",
            "tmp",
            "tmp-registry",
            "tokens",
            "work",
        ];
        let volumes = names.map(|name| json!([{"name": name, "emptyDir": {}}]));
        let message = "these names are reserved for volumes of the operator";
        refuses(&space, &at("volumes"), message, &volumes).await;
        let volumes = ["A", "a.b", ""].map(|name| json!([{"name": name, "emptyDir": {}}]));
        let message = "must consist of lowercase letters, digits and '-'";
        refuses(&space, &at("volumes"), message, &volumes).await;
    }
}

#[tokio::test]
async fn secrets_and_claims_of_the_operator_are_refused_in_pod_options() {
    let space = Space::new().await;
    let volume = |mut source: Value| {
        source["name"] = json!("a");
        json!([source])
    };
    for field in FIELDS {
        let at = |option: &str| format!("{field}/{option}");
        let with = |make: fn(&str) -> Value| OUR_SECRETS.map(make);
        let variables = with(
            |name| json!([{"name": "A", "valueFrom": {"secretKeyRef": {"name": name, "key": "k"}}}]),
        );
        refuses(&space, &at("env"), OUR_SECRET, &variables).await;
        let sources = with(|name| json!([{"secretRef": {"name": name}}]));
        refuses(&space, &at("envFrom"), OUR_SECRET, &sources).await;
        let pulls = with(|name| json!([{ "name": name }]));
        refuses(&space, &at("imagePullSecrets"), OUR_SECRET, &pulls).await;
        let secrets = with(|name| json!({"secret": {"secretName": name}})).map(volume);
        refuses(&space, &at("volumes"), OUR_SECRET, &secrets).await;
        let projected = with(
            |name| json!({"projected": {"sources": [{"configMap": {"name": "a"}}, {"secret": {"name": name}}]}}),
        );
        refuses(&space, &at("volumes"), OUR_SECRET, &projected.map(volume)).await;
        let csi =
            with(|name| json!({"csi": {"driver": "a", "nodePublishSecretRef": {"name": name}}}));
        refuses(&space, &at("volumes"), OUR_SECRET, &csi.map(volume)).await;
        let claims = ["web-cache", "other-cache"];
        let claims =
            claims.map(|name| volume(json!({"persistentVolumeClaim": {"claimName": name}})));
        let message = "these names are reserved for cache volumes";
        refuses(&space, &at("volumes"), message, &claims).await;
        let token = json!({"projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}});
        refuses(
            &space,
            &at("volumes"),
            "use spec.runner.tokens",
            &[volume(token)],
        )
        .await;
        let message =
            "exactly one of configMap, secret, projected, csi, emptyDir and persistentVolumeClaim";
        let sources = [
            json!({}),
            json!({"emptyDir": {}, "configMap": {"name": "a"}}),
        ];
        refuses(&space, &at("volumes"), message, &sources.map(volume)).await;
        // The schema has no hostPath.
        let host = volume(json!({"hostPath": {"path": "/"}}));
        refuses(&space, &at("volumes"), "", &[host]).await;
    }
}

#[tokio::test]
async fn mounts_over_paths_of_the_operator_are_refused_by_the_schema() {
    let space = Space::new().await;
    let mount = |path: &str| json!([{"name": "a", "mountPath": path}]);
    for field in FIELDS {
        let field = format!("{field}/volumeMounts");
        let mut paths: Vec<String> = Vec::new();
        for path in alustan_api::paths::PROTECTED {
            paths.extend([path.to_owned(), format!("{path}/below")]);
            let mut above = path;
            while let Some((parent, _)) = above
                .rsplit_once('/')
                .filter(|(parent, _)| !parent.is_empty())
            {
                paths.push(parent.to_owned());
                above = parent;
            }
        }
        let bad: Vec<Value> = paths.iter().map(|path| mount(path)).collect();
        refuses(
            &space,
            &field,
            "must not be at, above or below a path of the operator",
            &bad,
        )
        .await;
        let bad = ["/", "", "a", "/a/", "/a//b", "/a/../b", "/a/.", "/a:b"].map(mount);
        refuses(&space, &field, "must be an absolute path", &bad).await;
        let good = [
            "/etc/company",
            "/alustan-more",
            "/tmpfs",
            "/workspace",
            "/var/lib/other",
            "/a/..b",
            "/a/.b",
        ];
        accepts(&space, &field, &good.map(mount)).await;
    }
}

#[tokio::test]
async fn quantities_and_grace_periods_of_pods_are_validated() {
    let space = Space::new().await;
    for (field, least) in FIELDS.into_iter().zip([600, 5]) {
        for resources in ["requests", "limits"] {
            let field = format!("{field}/resources/{resources}");
            let good = [
                json!({"cpu": 2}),
                json!({"cpu": "500m", "memory": "1.5Gi"}),
                json!({"memory": "1e9"}),
            ];
            accepts(&space, &field, &good).await;
            let bad = ["", "-1", "much", "1 Gi", "1gi"].map(|text| json!({"memory": text}));
            refuses(&space, &field, "should match", &bad).await;
        }
        let good = [
            json!({"terminationGracePeriodSeconds": least}),
            json!({"terminationGracePeriodSeconds": 7200}),
        ];
        accepts(&space, field, &good).await;
        let parent = field.trim_end_matches("/pod");
        let short = json!({"pod": {"terminationGracePeriodSeconds": least - 1}});
        let message = format!("pod.terminationGracePeriodSeconds must be at least {least}");
        refuses(&space, parent, &message, &[short]).await;
        let long = [json!(7201)];
        let field = format!("{field}/terminationGracePeriodSeconds");
        refuses(&space, &field, "must be at most 7200 seconds", &long).await;
    }
}
