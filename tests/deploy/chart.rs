//! Renders the chart with every value that changes the rendered manifests.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::rendered::{CHART, Id, file, helm, kustomize, objects, root, run, usual};
use crate::schemas::conforms;

/// Names of the test cases, and their chart values. Each branch of a template is rendered in at least one test case and skipped in another.
const MATRIX: [(&str, &str); 18] = [
    ("nothing", ""),
    (
        "image",
        "image: {repository: registry.test:5000/a, tag: x, pullPolicy: Always}\nimagePullSecrets: [{name: pull}]\n\
         baseImage: registry.test/base@sha256:ab\nengines: ['opentofu:1.12.6=registry.test/opentofu:1.12.6', 'terraform:1.11.4=registry.test/terraform:1.11.4']\n",
    ),
    (
        "digest",
        "image: {digest: 'sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'}\n",
    ),
    (
        "builder",
        "builder: {image: registry.test/builder, arguments: ['--single-snapshot', '--verbosity=debug'], capabilities: [CHOWN, SYS_CHROOT], allowDockerfiles: true, namespace: builds, userNamespaces: true}\n\
         registries: {insecure: ['registry.test:5000'], identity: [registry.test/team]}\n\
         certificateAuthorities: {configMap: ca, key: bundle.pem}\n",
    ),
    (
        "one namespace",
        "watchNamespaces: [team]\nallowCrossNamespaceRefs: true\nmaxConcurrentRuns: 1000000\n",
    ),
    ("two namespaces", "watchNamespaces: [team, other]\n"),
    (
        "its own namespace",
        "watchNamespaces: [alustan-system]\ncrds: {install: false}\npolicies: {enabled: false}\n",
    ),
    (
        "logs and messages",
        "log: {level: 'info,kube=debug', format: json, levelConfigMap: level}\nhooks: {secretName: hooks}\n\
         notifications: {secretName: places}\ngitCache: {mib: 10240, volume: 12Gi}\n",
    ),
    ("metacontroller", "metacontroller: {enabled: true}\n"),
    (
        "metacontroller with certificates",
        "metacontroller: {enabled: true, namespace: mc, serviceAccountName: mc, tokenSecret: t, tls: {enabled: true, serverSecret: s, clientSecret: c}}\n",
    ),
    (
        "two",
        "replicas: 2\npodDisruptionBudget: {enabled: true}\nresources: {requests: {cpu: '1'}, limits: {cpu: '2', memory: 2Gi}}\n",
    ),
    (
        "pod",
        "extraEnv: [{name: HTTPS_PROXY, value: 'http://proxy.test'}, {name: TOKEN, valueFrom: {secretKeyRef: {name: a, key: b}}}]\n\
         podLabels: {azure.workload.identity/use: 'true'}\npodAnnotations: {a/b: 'c'}\nnodeSelector: {pool: a}\npodUser: none\n\
         tolerations: [{key: a, operator: Exists}]\npriorityClassName: system-cluster-critical\n\
         affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Exists}]}]}}}\n\
         topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule}]\n\
         service: {annotations: {a: b}}\nserviceAccount: {annotations: {eks.amazonaws.com/role-arn: 'arn:aws:iam::1:role/a'}}\n",
    ),
    (
        "rights of somebody else",
        "serviceAccount: {create: false, name: somebody}\nrbac: {create: false}\nmetacontroller: {enabled: true}\ncrds: {keep: false}\n",
    ),
    (
        "limits",
        "allowed: {registries: [registry.test/team, docker.io], repositories: ['https://git.test'], builders: [], serviceAccounts: [team/x], approval: Manual, destroy: Manual}\n\
         networkPolicy: {enabled: true, from: [{podSelector: {}}], blocked: [169.254.169.254/32, 10.0.0.0/8], namespaces: [team, other]}\n\
         podDefaults: {runs: {tolerations: [{key: a, operator: Exists}]}, allowed: {persistentVolumeClaims: true}, maximum: {resources: {memory: 8Gi}}}\n\
         terraformCliConfig: \"provider_installation {\\n  direct {}\\n}\\n\"\n",
    ),
    ("page", "page: {enabled: true}\n"),
    (
        "page with TLS",
        "page: {enabled: true, replicas: 2, url: 'https://alustan.example.com', cookieKeySecret: cookie, tls: {secretName: tls}, service: {annotations: {a: b}},\n\
         networkPolicy: {from: [{podSelector: {}}], apiServerPorts: [16443]}}\n\
         watchNamespaces: [team]\nimagePullSecrets: [{name: pull}]\nimage: {pullPolicy: Always}\npodUser: none\nnodeSelector: {}\n\
         tolerations: [{key: a, operator: Exists}]\n",
    ),
    (
        "page behind a proxy",
        "page: {enabled: true, signIn: proxy, url: 'https://alustan.example.com', tls: {secretName: tls}, networkPolicy: {enabled: false},\n\
         proxy: {clientCASecret: ca, users: [jane@example.com], groups: [admins], userHeader: X-Auth-Request-User, groupHeader: X-Auth-Request-Groups}}\n",
    ),
    (
        "all that watches",
        "monitoring: {podMonitor: {enabled: true, interval: 1m, labels: {release: p}}, prometheusRule: {enabled: true, labels: {release: p}}, dashboard: {enabled: true, labels: {}}}\n\
         networkPolicy: {enabled: true, blocked: []}\nnameOverride: tf\nfullnameOverride: tf-operator\n",
    ),
];

#[test]
fn helm_lint_passes_with_all_values() {
    for (name, values) in MATRIX {
        let values = file(values);
        let lint = [
            "lint",
            "--strict",
            "--quiet",
            CHART,
            "-f",
            values.path().to_str().unwrap(),
        ];
        run("helm", &lint).unwrap_or_else(|message| panic!("{name}: {message}"));
    }
}

/// Validates all rendered manifests and the examples against the schemas of Kubernetes and of the CRD.
#[test]
fn rendered_manifests_conform_to_the_schemas() {
    let folder = tempfile::tempdir().unwrap();
    let mut kinds = BTreeSet::new();
    let mut add = |name: &str, text: &str| {
        for id in objects(text).into_keys() {
            kinds.insert((id.api_version, id.kind));
        }
        let file = format!("{}.yaml", name.replace([' ', '/'], "-"));
        std::fs::write(folder.path().join(file), text).unwrap();
    };
    for (name, values) in MATRIX {
        add(name, &usual(values));
    }
    for overlay in [
        "overlays/dev",
        "overlays/staging",
        "overlays/prod",
        "namespace",
        "builds",
    ] {
        add(overlay, &kustomize(&format!("deploy/kustomize/{overlay}")));
    }
    for (name, text) in examples() {
        add(&name, &text);
    }
    let result = conforms(folder.path(), &kinds);
    println!("{}", result.unwrap_or_else(|message| panic!("{message}")));
}

#[test]
fn unknown_field_in_a_manifest_is_detected() {
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"},
        "spec": {"selector": {}, "template": {"spec": {"containers": [{"name": "a", "imagePullPolicies": "Always"}]}}},
    });
    let tf = json!({
        "apiVersion": "alustan.io/v1alpha1", "kind": "Terraform", "metadata": {"name": "a"},
        "spec": {"gitRepo": {"url": "a", "branches": "main"}, "containerRegistry": {"imageName": "a"}},
    });
    for (object, field) in [(deployment, "imagePullPolicies"), (tf, "branches")] {
        let word = |key: &str| object[key].as_str().unwrap().to_owned();
        let kinds = BTreeSet::from([(word("apiVersion"), word("kind"))]);
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.yaml"), object.to_string()).unwrap();
        let message = conforms(folder.path(), &kinds).unwrap_err();
        assert!(message.contains(field), "{message}");
    }
}

/// Returns name and text of each manifest in `deploy/examples`.
fn examples() -> Vec<(String, String)> {
    let mut folders = vec![root().join("deploy/examples")];
    let mut paths = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if ["resource.yaml", "resources.yaml"]
                .iter()
                .any(|name| path.ends_with(name))
            {
                let text = std::fs::read_to_string(&path).unwrap();
                paths.push((format!("example{}", path.display()), text));
            }
        }
    }
    assert!(paths.len() > 8, "{paths:?}");
    paths
}

#[test]
fn invalid_value_is_refused_with_its_name() {
    for (values, message) in [
        ("replica: 2", "replica"),
        ("log: {format: xml}", "format"),
        ("log: {colour: red}", "colour"),
        ("image: {digest: latest}", "digest"),
        ("image: {pullPolicy: Sometimes}", "pullPolicy"),
        ("engines: ['opentofu=x']", "engines"),
        ("maxConcurrentRuns: 0", "maxConcurrentRuns"),
        ("maxConcurrentRuns: many", "maxConcurrentRuns"),
        ("watchNamespaces: [a, a]", "watchNamespaces"),
        ("watchNamespaces: ['*']", "watchNamespaces"),
        ("registries: {insecure: ['http://a.test']}", "insecure"),
        ("allowed: {registry: [a]}", "registry"),
        ("allowed: {approval: Auto}", "approval"),
        ("networkPolicy: {blocked: [metadata]}", "blocked"),
        ("podLabels: {a: 1}", "podLabels"),
        ("podDefaults: {run: {}}", "run"),
        ("page: {signIn: header}", "signIn"),
        ("page: {url: 'https://a.test/b'}", "url"),
        ("page: {proxy: {users: ['system:admin']}}", "users"),
        ("page: {proxy: {groups: ['system:masters']}}", "groups"),
        (
            "page: {networkPolicy: {apiServerPorts: [https]}}",
            "apiServerPorts",
        ),
        (
            "page: {enabled: true, signIn: proxy}",
            "page.proxy.clientCASecret",
        ),
        (
            "page: {enabled: true}\nwatchNamespaces: [a, b]",
            "watchNamespaces",
        ),
        ("terraformCliConfig: {direct: {}}", "terraformCliConfig"),
    ] {
        let refused = helm("alustan", "alustan-system", values).expect_err(values);
        assert!(refused.contains(message), "{values}: {refused}");
    }
}

#[test]
fn two_releases_share_only_the_crds() {
    let usual = objects(&usual(""));
    let team = helm(
        "team",
        "team-system",
        "watchNamespaces: [team]\nallowed: {approval: Manual}",
    );
    let team = objects(&team.unwrap());
    let shared: Vec<&Id> = usual.keys().filter(|id| team.contains_key(id)).collect();
    assert_eq!(shared.len(), 2, "{shared:?}");
    let are_crds = |id: &&Id| id.kind == "CustomResourceDefinition";
    assert!(shared.iter().all(are_crds), "{shared:?}");
    let text = serde_json::to_string(&team.values().collect::<Vec<_>>()).unwrap();
    assert!(!text.contains("alustan-system"), "of the other release");
    let account = "system:serviceaccount:team-system:team-alustan-controller";
    assert!(
        text.contains(account),
        "the policy about the operator knows its account"
    );
}

/// Returns the objects of `kind`.
fn of<'a>(all: &'a [(Id, Value)], kind: &str) -> Vec<&'a (Id, Value)> {
    all.iter().filter(|(id, _)| id.kind == kind).collect()
}

#[test]
fn watch_namespaces_limit_the_rights_of_the_operator() {
    let all: Vec<_> = objects(&usual("watchNamespaces: [team, other]"))
        .into_iter()
        .collect();
    assert!(of(&all, "ClusterRoleBinding").is_empty());
    let places: BTreeSet<_> = of(&all, "RoleBinding")
        .iter()
        .map(|(id, _)| id.namespace.as_str())
        .collect();
    assert_eq!(places, BTreeSet::from(["alustan-system", "other", "team"]));
    let everywhere: Vec<_> = objects(&usual("")).into_iter().collect();
    let whole = of(&everywhere, "ClusterRole")
        .into_iter()
        .find(|(id, _)| id.name == "alustan-controller");
    let mut expected = whole.unwrap().1["rules"].clone();
    for rule in expected.as_array_mut().unwrap() {
        if rule["resources"] == json!(["namespaces"]) {
            rule["verbs"] = json!(["get"]);
        }
    }
    for namespace in ["team", "other"] {
        let role = of(&all, "Role").into_iter().find(|(id, _)| {
            (id.name.as_str(), id.namespace.as_str()) == ("alustan-controller", namespace)
        });
        assert_eq!(role.unwrap().1["rules"], expected, "{namespace}");
    }
    let deployment = of(&all, "Deployment")[0].1.to_string();
    assert!(
        deployment.contains(r#""value":"team,other""#),
        "{deployment}"
    );
}

#[test]
fn policies_apply_to_watched_namespaces_only() {
    let selector = |values: &str| {
        let all: Vec<_> = objects(&usual(values)).into_iter().collect();
        let bindings = of(&all, "ValidatingAdmissionPolicyBinding");
        bindings
            .iter()
            .map(|(id, binding)| {
                let resources = binding["spec"]["matchResources"].clone();
                (id.name.clone(), resources)
            })
            .collect::<Vec<_>>()
    };
    let everywhere = selector("allowed: {approval: Manual}");
    assert!(everywhere.iter().all(|(_, at)| at.is_null()));
    let some = selector("allowed: {approval: Manual}\nwatchNamespaces: [team, other]");
    assert_eq!(some.len(), everywhere.len());
    for (name, at) in some {
        let watched = json!({"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["team", "other"]});
        let wanted = json!({"namespaceSelector": {"matchExpressions": [watched]}});
        assert_eq!(at, wanted, "{name}");
    }
}

#[test]
fn each_release_has_a_separate_lease() {
    for (release, lease) in [("alustan", "alustan"), ("team", "team-alustan")] {
        let all: Vec<_> =
            objects(&helm(release, "alustan-system", "watchNamespaces: [team]").unwrap())
                .into_iter()
                .collect();
        let role = of(&all, "Role")
            .into_iter()
            .find(|(id, _)| id.name.ends_with("-lease"));
        assert_eq!(role.unwrap().1["rules"][1]["resourceNames"], json!([lease]));
        let deployment = of(&all, "Deployment")[0].1.to_string();
        assert!(deployment.contains(&format!(r#"{{"name":"ALUSTAN_LEASE","value":"{lease}"}}"#)));
    }
}

#[test]
fn uninstall_keeps_the_crd_and_user_data() {
    for (name, values) in MATRIX {
        for (id, object) in objects(&usual(values)) {
            let kept = object["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep";
            match id.kind.as_str() {
                "CustomResourceDefinition" => {
                    assert_eq!(kept, !values.contains("keep: false"), "{name}");
                }
                "Namespace" | "Secret" | "PersistentVolumeClaim" | "Terraform" => {
                    panic!("{name}: {id}")
                }
                _ => assert!(!kept, "{name}: {id}"),
            }
        }
    }
}

/// The pods of the operator and of the page meet PodSecurity *restricted* and have a read-only root file system.
#[test]
fn pods_are_restricted_with_all_values() {
    for (name, values) in MATRIX {
        let all: Vec<_> = objects(&usual(values)).into_iter().collect();
        let deployments = of(&all, "Deployment");
        let expected = if values.contains("page:") { 2 } else { 1 };
        assert_eq!(deployments.len(), expected, "{name}");
        for (id, deployment) in deployments {
            let name = format!("{name}: {id}");
            let pod = &deployment["spec"]["template"]["spec"];
            assert_eq!(pod["securityContext"]["runAsNonRoot"], true, "{name}");
            assert_eq!(pod["nodeSelector"]["kubernetes.io/os"], "linux", "{name}");
            let seccomp = &pod["securityContext"]["seccompProfile"]["type"];
            assert_eq!(seccomp, "RuntimeDefault", "{name}");
            let container = json!({
                "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": true,
            });
            assert_eq!(pod["containers"][0]["securityContext"], container, "{name}");
            for volume in pod["volumes"].as_array().unwrap() {
                assert!(volume.get("hostPath").is_none(), "{name}");
            }
        }
    }
}

/// Returns resources and verbs of the rules that are bound to ServiceAccount `alustan-page`, and the namespaces of the bindings.
fn rights_of_the_page(values: &str) -> (BTreeSet<String>, BTreeSet<String>) {
    let all: Vec<_> = objects(&usual(values)).into_iter().collect();
    let (mut rights, mut namespaces) = (BTreeSet::new(), BTreeSet::new());
    for (id, binding) in all.iter().filter(|(id, _)| id.kind.ends_with("Binding")) {
        let mut subjects = binding["subjects"].as_array().into_iter().flatten();
        if !subjects.any(|subject| subject["name"] == "alustan-page") {
            continue;
        }
        namespaces.insert(id.namespace.clone());
        let role = all
            .iter()
            .find(|(role, _)| {
                binding["roleRef"]["kind"] == role.kind
                    && binding["roleRef"]["name"] == role.name
                    && role.namespace == id.namespace
            })
            .unwrap();
        for rule in role.1["rules"].as_array().unwrap() {
            let names = match &rule["resourceNames"] {
                Value::Null => String::new(),
                names => format!(" {names}"),
            };
            rights.insert(format!("{} {}{names}", rule["resources"], rule["verbs"]));
        }
    }
    (rights, namespaces)
}

#[test]
fn page_has_no_rights_on_secrets_logs_and_writes() {
    let set = |rights: &[&str]| rights.iter().map(|right| (*right).to_owned()).collect();
    let terraforms = r#"["terraforms"] ["get","list","watch"]"#;
    let tokens = r#"["tokenreviews"] ["create"]"#;
    let (rights, namespaces) = rights_of_the_page("page: {enabled: true}");
    assert_eq!(rights, set(&[terraforms, tokens]));
    assert_eq!(namespaces, set(&[""]));
    let (rights, namespaces) = rights_of_the_page("page: {enabled: true}\nwatchNamespaces: [team]");
    assert_eq!(rights, set(&[terraforms, tokens]));
    assert_eq!(namespaces, set(&["", "team"]));
    let proxy = |more: &str| {
        rights_of_the_page(&format!(
            "page: {{enabled: true, signIn: proxy, tls: {{secretName: t}}, proxy: {{clientCASecret: c{more}}}}}"
        ))
        .0
    };
    let runs = r#"["terraformruns"] ["get","list"]"#;
    let reviews = r#"["subjectaccessreviews"] ["create"]"#;
    assert_eq!(proxy(""), set(&[terraforms, runs, reviews]));
    assert_eq!(
        proxy(", users: [jane], groups: [admins]"),
        set(&[
            terraforms,
            runs,
            reviews,
            r#"["users"] ["impersonate"] ["jane"]"#,
            r#"["groups"] ["impersonate"] ["admins"]"#,
        ])
    );
}
