//! Pod options of resources, and the defaults and limits of the operator (`--pod-defaults`).

use std::collections::{BTreeMap, BTreeSet};

use alustan_api::{Reason, Terraform};
use alustan_core::model::pod_options::{check_policy, of_run, refusal, secret_variables};
use alustan_core::observed::Waiting;
use alustan_core::pod_policy::PodPolicy;
use alustan_core::settings::Settings;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Container, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use rstest::rstest;
use serde_json::{Value, json};

use super::objects::{CreatedObjects, appended, pod};
use super::step_names;
use crate::fixtures::{Edit as _, settings, terraform};
use crate::world::{PodEvent, Stage, World};

const RUN: &str = "/runner/pod";
const BUILD: &str = "/containerRegistry/builder/pod";

fn policy(policy: Value) -> PodPolicy {
    serde_json::from_value(policy).unwrap()
}

/// Returns limits that allow every option which may be allowed.
fn generous() -> Settings {
    Settings {
        pods: policy(json!({
            "allowed": {
                "csiDrivers": ["secrets-store.csi.k8s.io"], "persistentVolumeClaims": true,
                "priorityClassNames": ["batch"], "runtimeClassNames": ["gvisor"],
                "tolerations": [{}], "labels": ["*"], "annotations": ["*"],
            },
        })),
        environment: BTreeMap::from([("HTTPS_PROXY".to_owned(), "http://proxy.test".to_owned())]),
        ..settings()
    }
}

fn violation(tf: &Terraform, settings: &Settings) -> Option<String> {
    let failure = refusal(tf, &BTreeSet::new(), settings)?;
    assert_eq!(failure.reason, Reason::PodOptionNotAllowed);
    Some(failure.message)
}

#[test]
fn shared_cache_volume_of_others_is_refused_in_pod_options() {
    let claim = json!({"persistentVolumeClaim": {"claimName": "plans"}});
    for (path, field) in [
        (RUN, "spec.runner.pod"),
        (BUILD, "spec.containerRegistry.builder.pod"),
    ] {
        let tf = terraform().with(path, volume(claim.clone()));
        assert_eq!(violation(&tf, &generous()), None);
        let shared = BTreeSet::from(["plans".to_owned()]);
        let failure = refusal(&tf, &shared, &generous()).unwrap();
        assert_eq!(failure.reason, Reason::PodOptionNotAllowed);
        let start = format!(
            "{field}.volumes[0].persistentVolumeClaim.claimName: PersistentVolumeClaim plans is a \
             shared cache volume"
        );
        assert!(failure.message.starts_with(&start), "{}", failure.message);
        let mounted = of_run(&tf, None, true, &shared, &generous()).volumes;
        assert_eq!(mounted, [], "a destroy does not mount it either");
    }
}

/// Returns a volume with `source`.
fn volume(mut source: Value) -> Value {
    source["name"] = json!("a");
    json!({ "volumes": [source] })
}

fn mount(path: &str) -> Value {
    json!({
        "volumes": [{"name": "a", "emptyDir": {}}],
        "volumeMounts": [{"name": "a", "mountPath": path}],
    })
}

fn secret_variable(secret: &str) -> Value {
    let reference = json!({"name": secret, "key": "k"});
    json!({ "env": [{"name": "A", "valueFrom": {"secretKeyRef": reference}}] })
}

#[rstest]
#[case::label(json!({"labels": {"alustan.io/uid": "x"}}), "labels.alustan.io/uid: this key is reserved")]
#[case::label_of_a_job(json!({"labels": {"batch.kubernetes.io/job-name": "x"}}), "labels.batch.kubernetes.io/job-name")]
#[case::annotation(json!({"annotations": {"alustan.io/a": "x"}}), "annotations.alustan.io/a: this key is reserved")]
#[case::eviction(json!({"annotations": {"karpenter.sh/do-not-disrupt": "false"}}), "annotations.karpenter.sh/do-not-disrupt")]
#[case::architecture(json!({"nodeSelector": {"kubernetes.io/arch": "arm64"}}), "nodeSelector.kubernetes.io/arch: the operator sets this label; set spec.runner.architecture")]
#[case::windows(json!({"nodeSelector": {"kubernetes.io/os": "windows"}}), "nodeSelector.kubernetes.io/os: runs and builds need Linux nodes; remove this label")]
#[case::variable(json!({"env": [{"name": "ALUSTAN_RUN", "value": "1"}]}), "env[0].name: variable ALUSTAN_RUN is set by the operator")]
#[case::proxy(json!({"env": [{"name": "A"}, {"name": "HTTPS_PROXY", "value": "x"}]}), "env[1].name: variable HTTPS_PROXY is set by the operator")]
#[case::prefix(json!({"envFrom": [{"prefix": "ALUSTAN_", "configMapRef": {"name": "a"}}]}), "envFrom[0].prefix")]
#[case::part_of_a_prefix(json!({"envFrom": [{"prefix": "ALUSTAN", "configMapRef": {"name": "a"}}]}), "envFrom[0].prefix")]
#[case::workspace(json!({"env": [{"name": "TF_WORKSPACE", "value": "a"}]}), "env[0].name: TF_WORKSPACE selects another state; set spec.workspace")]
#[case::no_size_limit(volume(json!({"emptyDir": {"sizeLimit": "0"}})), "volumes[0].emptyDir.sizeLimit: \"0\" is not a size between 1 and 20Gi")]
#[case::large_scratch(volume(json!({"emptyDir": {"sizeLimit": "21Gi"}})), "volumes[0].emptyDir.sizeLimit")]
#[case::secret_of_a_variable(
    secret_variable("web-run"),
    "env[0].valueFrom.secretKeyRef.name: Secret web-run is reserved"
)]
#[case::state(secret_variable("other-state"), "Secret other-state is reserved")]
#[case::slot(
    secret_variable("other-state-slot-12"),
    "Secret other-state-slot-12 is reserved"
)]
#[case::secret_of_variables(json!({"envFrom": [{"secretRef": {"name": "web-pin"}}]}), "envFrom[0].secretRef.name: Secret web-pin is reserved")]
#[case::pull_secret(json!({"imagePullSecrets": [{"name": "web-registry"}]}), "imagePullSecrets[0].name: Secret web-registry is reserved")]
#[case::secret_volume(volume(json!({"secret": {"secretName": "web-report"}})), "volumes[0].secret.secretName: Secret web-report is reserved")]
#[case::projected_secret(volume(json!({"projected": {"sources": [{"configMap": {"name": "a"}}, {"secret": {"name": "web-plan"}}]}})), "volumes[0].projected.sources[1].secret.name")]
#[case::token(volume(json!({"projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}})), "volumes[0].projected.sources[0].serviceAccountToken: tokens of the ServiceAccount are not allowed; set spec.runner.tokens")]
#[case::secret_of_a_driver(volume(json!({"csi": {"driver": "secrets-store.csi.k8s.io", "nodePublishSecretRef": {"name": "web-run"}}})), "volumes[0].csi.nodePublishSecretRef.name")]
#[case::cache(volume(json!({"persistentVolumeClaim": {"claimName": "other-cache"}})), "volumes[0].persistentVolumeClaim.claimName: PersistentVolumeClaim other-cache is reserved")]
#[case::host_path(volume(json!({"hostPath": {"path": "/"}})), "volumes[0]: exactly one of configMap")]
#[case::two_sources(volume(json!({"emptyDir": {}, "configMap": {"name": "a"}})), "volumes[0]: exactly one of configMap")]
#[case::volume_name(json!({"volumes": [{"name": "tmp", "emptyDir": {}}]}), "volumes[0].name: the operator has a volume tmp")]
#[case::unknown_volume(json!({"volumeMounts": [{"name": "b", "mountPath": "/b"}]}), "volumeMounts: mount /b names volume b, which does not exist")]
#[case::grace(json!({"terminationGracePeriodSeconds": 4}), "terminationGracePeriodSeconds: 4 is less than")]
#[case::quantity(json!({"resources": {"limits": {"memory": "much"}}}), "resources.limits.memory: \"much\" is not a quantity")]
#[case::request(json!({"resources": {"limits": {"memory": "1Gi"}, "requests": {"memory": "2Gi"}}}), "resources.requests.memory: request 2Gi exceeds limit 1Gi")]
fn reserved_pod_option_is_always_refused(#[case] options: Value, #[case] message: &str) {
    for (pointer, field) in [
        (RUN, "spec.runner.pod"),
        (BUILD, "spec.containerRegistry.builder.pod"),
    ] {
        let tf = terraform().with(pointer, options.clone());
        let refused = violation(&tf, &generous()).unwrap();
        let expected = format!("{field}.{message}");
        assert!(
            refused.starts_with(&format!("{field}.")) && refused.contains(message),
            "{expected}: {refused}"
        );
    }
    let defaults = PodPolicy {
        runs: serde_json::from_value(options).unwrap(),
        ..PodPolicy::default()
    };
    let error = check_policy(&defaults, &generous().environment).unwrap_err();
    assert!(
        error.starts_with("runs.") && error.contains(message),
        "{error}"
    );
}

#[test]
fn mounts_over_paths_of_the_operator_are_refused() {
    for path in [
        "/",
        "/alustan",
        "/alustan/module/a",
        "/alustan-inject",
        "/var/lib/alustan/x",
        "/var/lib",
        "/var",
        "/work",
        "/work/a",
        "/tmp",
        "/kaniko",
        "/kaniko-ctx/src",
        "/usr",
        "/usr/local/bin/tofu",
        "/run",
        "/run/secrets/kubernetes.io",
        "/var/run/secrets/alustan.io/tokens",
        "/proc/1",
        "/dev/shm",
        "/sys",
        "relative",
        "/a/../tmp",
        "/a//b",
        "/a/",
        "/a/./b",
        "/a:b",
        "",
    ] {
        let tf = terraform().with(RUN, mount(path));
        let refused = violation(&tf, &generous());
        let refused = refused.unwrap_or_else(|| panic!("{path:?} is allowed"));
        assert!(refused.contains("volumeMounts[0].mountPath"), "{refused}");
    }
    for path in [
        "/etc/company",
        "/alustan-more",
        "/workspace",
        "/tmpfs",
        "/var/lib/other",
        "/usr/share/ca",
    ] {
        let tf = terraform().with(RUN, mount(path));
        assert_eq!(violation(&tf, &generous()), None, "{path}");
    }
}

#[rstest]
#[case::driver(volume(json!({"csi": {"driver": "secrets-store.csi.k8s.io"}})), "volumes[0].csi.driver", "csiDrivers")]
#[case::claim(volume(json!({"persistentVolumeClaim": {"claimName": "shared"}})), "volumes[0].persistentVolumeClaim", "persistentVolumeClaims")]
#[case::priority(json!({"priorityClassName": "batch"}), "priorityClassName", "priorityClassNames")]
#[case::runtime(json!({"runtimeClassName": "gvisor"}), "runtimeClassName", "runtimeClassNames")]
#[case::toleration(json!({"tolerations": [{"operator": "Exists"}]}), "tolerations[0]", "tolerations")]
#[case::label(json!({"labels": {"team": "a"}}), "labels.team", "labels")]
#[case::annotation(json!({"annotations": {"sidecar.istio.io/inject": "true"}}), "annotations.sidecar.istio.io/inject", "annotations")]
fn pod_option_is_refused_until_the_operator_allows_it(
    #[case] options: Value,
    #[case] path: &str,
    #[case] entry: &str,
) {
    for (pointer, field) in [
        (RUN, "spec.runner.pod"),
        (BUILD, "spec.containerRegistry.builder.pod"),
    ] {
        let tf = terraform().with(pointer, options.clone());
        let refused = violation(&tf, &settings()).unwrap();
        let begin = format!("{field}.{path}: the operator does not allow ");
        assert!(refused.starts_with(&begin), "{refused}");
        let help = format!("(allowed.{entry} in the file of --pod-defaults)");
        assert!(refused.ends_with(&help), "{refused}");
        assert_eq!(violation(&tf, &generous()), None);
    }
    // The operator may have it as a default.
    let mut settings = settings();
    settings.pods.runs = serde_json::from_value(options).unwrap();
    assert_eq!(check_policy(&settings.pods, &BTreeMap::new()), Ok(()));
    assert_eq!(violation(&terraform(), &settings), None);
}

/// Required anti-affinity is symmetric: it would keep pods of other namespaces from starting.
#[test]
fn anti_affinity_to_pods_of_other_namespaces_is_refused() {
    let with_term = |term: Value| {
        let terms = json!({"requiredDuringSchedulingIgnoredDuringExecution": [term]});
        let options = json!({"affinity": {"podAntiAffinity": terms}});
        violation(&terraform().with(RUN, options), &generous())
    };
    let own = json!({"labelSelector": {}, "topologyKey": "kubernetes.io/hostname"});
    assert_eq!(with_term(own.clone()), None);
    for (field, value) in [
        ("namespaces", json!(["other"])),
        ("namespaceSelector", json!({})),
    ] {
        let mut term = own.clone();
        term[field] = value;
        let refused = with_term(term).unwrap();
        assert!(
            refused.contains("affinity.podAntiAffinity")
                && refused.contains("pods of other namespaces"),
            "{refused}"
        );
    }
}

#[test]
fn limits_of_the_operator_match_names_keys_and_taints() {
    let limited = Settings {
        pods: policy(json!({
            "allowed": {
                "priorityClassNames": ["batch"],
                "annotations": ["linkerd.io/*", "a"],
                "tolerations": [{"key": "dedicated", "value": "terraform", "effect": "NoSchedule"}, {"key": "spot"}],
            },
            "maximum": {"resources": {"memory": "4Gi"}},
        })),
        ..settings()
    };
    for (options, is_allowed) in [
        (json!({"priorityClassName": "batch"}), true),
        (json!({"priorityClassName": "system-node-critical"}), false),
        (
            json!({"annotations": {"linkerd.io/inject": "enabled", "a": "b"}}),
            true,
        ),
        (json!({"annotations": {"ab": "c"}}), false),
        (
            json!({"tolerations": [{"key": "dedicated", "value": "terraform", "effect": "NoSchedule"}]}),
            true,
        ),
        (
            json!({"tolerations": [{"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"}]}),
            false,
        ),
        (
            json!({"tolerations": [{"key": "dedicated", "value": "terraform"}]}),
            false,
        ),
        (
            json!({"tolerations": [{"key": "spot", "operator": "Exists"}]}),
            true,
        ),
        (json!({"tolerations": [{"operator": "Exists"}]}), false),
        (
            json!({"resources": {"limits": {"memory": "4096Mi", "cpu": "64"}}}),
            true,
        ),
        (json!({"resources": {"limits": {"memory": "4.5Gi"}}}), false),
        (
            json!({"resources": {"requests": {"memory": 5_000_000_000_i64}}}),
            false,
        ),
    ] {
        let tf = terraform().with(RUN, options.clone());
        let refused = violation(&tf, &limited);
        assert_eq!(refused.is_none(), is_allowed, "{options}: {refused:?}");
    }
}

#[test]
fn only_resources_are_allowed_for_builds_elsewhere() {
    let elsewhere = Settings {
        build_namespace: Some("builds".to_owned()),
        ..generous()
    };
    let resources = json!({"resources": {"limits": {"memory": "4Gi"}}});
    let tf = terraform().with(BUILD, resources);
    assert_eq!(violation(&tf, &elsewhere), None);
    for options in [
        json!({"nodeSelector": {"a": "b"}}),
        json!({"env": [{"name": "A", "value": "b"}]}),
        volume(json!({"secret": {"secretName": "of-another-tenant"}})),
    ] {
        let tf = terraform().with(BUILD, options.clone());
        let field = options.as_object().unwrap().keys().next().unwrap();
        let refused = violation(&tf, &elsewhere).unwrap();
        let begin = format!(
            "spec.containerRegistry.builder.pod.{field}: builds run in namespace builds \
             (--build-namespace)"
        );
        assert!(refused.starts_with(&begin), "{refused}");
        assert_eq!(violation(&terraform().with(RUN, options), &elsewhere), None);
    }
}

#[test]
fn refused_pod_option_stalls_until_it_is_removed() {
    let mut world = World::applied();
    world.edit(|tf| tf.with(RUN, json!({"priorityClassName": "batch"})));
    world.settle();
    assert!(world.is_stalled());
    assert_eq!(world.reason(), "PodOptionNotAllowed");
    assert_eq!(world.run_number(), 1);
    world.edit(|tf| tf.with(RUN, Value::Null));
    world.settle();
    assert!(world.is_ready() && world.run_number() == 1);
}

fn template(job: &Job) -> PodTemplateSpec {
    job.spec.clone().unwrap().template
}

fn container(job: &Job, name: &str) -> Container {
    let pod = pod(job);
    let mut all = pod
        .init_containers
        .into_iter()
        .flatten()
        .chain(pod.containers);
    all.find(|container| container.name == name).unwrap()
}

/// Returns the names of environment variables and the mount paths of a container.
fn names(container: &Container) -> (Vec<String>, Vec<String>) {
    let env = container.env.iter().flatten().map(|env| env.name.clone());
    let mounts = container.volume_mounts.iter().flatten();
    (
        env.collect(),
        mounts.map(|mount| mount.mount_path.clone()).collect(),
    )
}

/// Returns requests and limits of all containers of the build, the apply and the drift check of a resource, by container.
fn all_resources(kind: &str, options: &Value) -> Vec<(String, Value)> {
    let foreign = terraform().with("/containerRegistry/baseImage", "elsewhere.test/base:1");
    let tf = foreign.with("/containerRegistry/builder", json!({"kind": kind}));
    let mut world = World::with(tf);
    world.settings.pods = policy(json!({"runs": options, "builds": options}));
    let created = CreatedObjects::in_world(world);
    let pods = created.jobs.iter().map(pod);
    let containers = pods.flat_map(|pod| {
        let init = pod.init_containers.into_iter().flatten();
        init.chain(pod.containers).collect::<Vec<_>>()
    });
    let resources = containers.map(|container| {
        let resources = serde_json::to_value(container.resources.unwrap()).unwrap();
        (container.name, resources)
    });
    resources.collect()
}

/// Names of the resources in `resources[field]`.
fn resource_names<'a>(resources: &'a Value, field: &str) -> Vec<&'a str> {
    let quantities = resources[field].as_object().unwrap();
    quantities.keys().map(String::as_str).collect()
}

/// A `ResourceQuota` on a resource refuses a pod in which one container has no value for it.
#[rstest]
#[case::kaniko("Kaniko")]
#[case::append("Append")]
fn every_container_meets_a_quota_on_all_resources(#[case] kind: &str) {
    let by_default = all_resources(kind, &json!({}));
    for (container, resources) in &by_default {
        let requests = resource_names(resources, "requests");
        assert_eq!(requests, ["cpu", "memory"], "{container}");
        assert_eq!(
            resource_names(resources, "limits"),
            ["memory"],
            "{container}"
        );
    }
    let names: BTreeSet<_> = by_default.iter().map(|(name, _)| name.as_str()).collect();
    for expected in ["inject", "prepare", "build", "terraform"] {
        assert!(names.contains(expected), "{names:?}");
    }
    // The example of docs/clusters.md.
    let options = json!({"resources": {
        "requests": {"cpu": "500m", "memory": "2Gi", "ephemeral-storage": "2Gi"},
        "limits": {"cpu": "1", "memory": "2Gi", "ephemeral-storage": "4Gi"},
    }});
    let with_options = all_resources(kind, &options);
    assert_eq!(with_options.len(), by_default.len());
    for (container, resources) in with_options {
        assert_eq!(resources, options["resources"], "{container}");
    }
}

#[test]
fn options_of_the_resource_are_merged_into_defaults() {
    let mut world = World::with(terraform().with(
        RUN,
        json!({
            "resources": {"limits": {"memory": "4Gi"}},
            "nodeSelector": {"pool": "own", "kubernetes.io/os": "linux"},
            "tolerations": [{"key": "b"}],
            "priorityClassName": "own",
            "annotations": {"sidecar.istio.io/inject": "true", "own": "1"},
            "volumes": [{"name": "ca", "configMap": {"name": "own-ca"}}, {"name": "more", "emptyDir": {}}],
            "volumeMounts": [{"name": "more", "mountPath": "/mnt/more", "readOnly": true}],
            "env": [{"name": "A", "value": "own"}],
            "envFrom": [{"configMapRef": {"name": "own"}}],
            "terminationGracePeriodSeconds": 900,
        }),
    ));
    world.settings = generous();
    world
        .settings
        .pods
        .allowed
        .priority_class_names
        .push("own".to_owned());
    world.settings.pods.runs = serde_json::from_value(json!({
        "resources": {"requests": {"cpu": "1", "memory": "8Gi"}, "limits": {"memory": "8Gi"}},
        "nodeSelector": {"pool": "default", "zone": "a"},
        "tolerations": [{"key": "a"}],
        "priorityClassName": "default",
        "volumes": [{"name": "ca", "configMap": {"name": "default-ca"}}],
        "volumeMounts": [{"name": "ca", "mountPath": "/etc/company"}],
        "env": [{"name": "A", "value": "default"}, {"name": "B", "value": "default"}],
        "envFrom": [{"configMapRef": {"name": "default"}}],
    }))
    .unwrap();
    let created = CreatedObjects::in_world(world);
    let job = created.job("web-apply-1");
    let made = pod(job);
    let engine = container(job, "terraform");
    let resources = serde_json::to_value(engine.resources.as_ref().unwrap()).unwrap();
    // The default request exceeds the limit of the resource, so the request of the operator is used.
    let expected =
        json!({"requests": {"cpu": "1", "memory": "128Mi"}, "limits": {"memory": "4Gi"}});
    assert_eq!(resources, expected);
    let selector = made.node_selector.unwrap();
    assert_eq!(
        (selector["pool"].as_str(), selector["zone"].as_str()),
        ("own", "a")
    );
    assert!(selector.contains_key("kubernetes.io/arch"));
    let keys = made
        .tolerations
        .unwrap()
        .into_iter()
        .map(|toleration| toleration.key.unwrap());
    assert_eq!(keys.collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(made.priority_class_name.unwrap(), "own");
    assert_eq!(made.termination_grace_period_seconds, Some(900));
    let volumes = serde_json::to_value(made.volumes.unwrap()).unwrap();
    let named = |name: &str| {
        let mut volumes = volumes.as_array().unwrap().iter();
        volumes
            .find(|volume| volume["name"] == name)
            .unwrap()
            .clone()
    };
    assert_eq!(named("ca")["configMap"]["name"], "own-ca");
    assert_eq!(named("more")["emptyDir"]["sizeLimit"], "20Gi");
    let (_, mounts) = names(&engine);
    assert!(
        mounts.ends_with(&["/etc/company".to_owned(), "/mnt/more".to_owned()]),
        "{mounts:?}"
    );
    let value = |name: &str| {
        let mut env = engine.env.iter().flatten();
        let found: Vec<_> = env.by_ref().filter(|env| env.name == name).collect();
        assert_eq!(found.len(), 1, "{name}");
        found[0].value.clone().unwrap_or_default()
    };
    assert_eq!(
        [value("A"), value("B"), value("ALUSTAN_GRACE")],
        ["own", "default", "890"]
    );
    let sources = serde_json::to_value(engine.env_from.unwrap()).unwrap();
    assert_eq!(sources[0]["configMapRef"]["name"], "default");
    assert_eq!(sources[1]["configMapRef"]["name"], "own");
    assert_eq!(sources[2]["secretRef"]["name"], "cloud");
    let annotations = template(job).metadata.unwrap().annotations.unwrap();
    assert_eq!(annotations["sidecar.istio.io/inject"], "true");
    assert_eq!(annotations["linkerd.io/inject"], "disabled");
    assert_eq!(annotations["own"], "1");
    assert_eq!(annotations["karpenter.sh/do-not-disrupt"], "true");
}

#[test]
fn build_options_reach_only_the_container_without_registry_credentials() {
    let options = json!({
        "resources": {"requests": {"memory": "2Gi"}},
        "volumes": [{"name": "ca", "configMap": {"name": "ca"}}],
        "volumeMounts": [{"name": "ca", "mountPath": "/etc/company"}],
        "env": [{"name": "A", "value": "b"}],
        "envFrom": [{"secretRef": {"name": "mirror"}}],
    });
    for tf in [terraform(), appended(terraform())] {
        let created = CreatedObjects::of(tf.with(BUILD, options.clone()));
        let job = created.job("build");
        let made = pod(job);
        for container in made
            .init_containers
            .iter()
            .flatten()
            .chain(&made.containers)
        {
            let is_prepare = container.name == "prepare";
            let (env, mounts) = names(container);
            assert_eq!(
                env.contains(&"A".to_owned()),
                is_prepare,
                "{}",
                container.name
            );
            assert_eq!(mounts.contains(&"/etc/company".to_owned()), is_prepare);
            assert_eq!(container.env_from.is_some(), is_prepare);
            let resources = container.resources.as_ref().unwrap();
            let memory = |values: &Option<BTreeMap<String, Quantity>>| {
                values.as_ref().unwrap()["memory"].clone()
            };
            let (request, limit) = (memory(&resources.requests), memory(&resources.limits));
            assert_eq!(
                [request.0, limit.0],
                ["2Gi", "2Gi"],
                "the limit follows the request"
            );
        }
        let run = created.job("web-apply-1");
        assert!(
            !names(&container(run, "terraform"))
                .0
                .contains(&"A".to_owned())
        );
    }
}

#[rstest]
#[case::env(json!({"env": [{"name": "A", "value": "b"}]}), true)]
#[case::sources(json!({"envFrom": [{"configMapRef": {"name": "a"}}]}), true)]
#[case::volumes(volume(json!({"configMap": {"name": "a"}})), true)]
#[case::mounts(mount("/etc/a"), true)]
#[case::resources(json!({"resources": {"limits": {"memory": "4Gi"}}}), false)]
#[case::selector(json!({"nodeSelector": {"a": "b"}}), false)]
#[case::affinity(json!({"affinity": {"nodeAffinity": {}}}), false)]
#[case::tolerations(json!({"tolerations": [{"key": "a"}]}), false)]
#[case::spread(json!({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "a", "whenUnsatisfiable": "ScheduleAnyway"}]}), false)]
#[case::priority(json!({"priorityClassName": "batch"}), false)]
#[case::runtime(json!({"runtimeClassName": "gvisor"}), false)]
#[case::labels(json!({"labels": {"a": "b"}}), false)]
#[case::annotations(json!({"annotations": {"a": "b"}}), false)]
#[case::pull_secrets(json!({"imagePullSecrets": [{"name": "a"}]}), false)]
#[case::aliases(json!({"hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a"]}]}), true)]
#[case::dns(json!({"dnsConfig": {"nameservers": ["10.0.0.1"]}}), true)]
#[case::grace(json!({"terminationGracePeriodSeconds": 900}), false)]
fn changed_pod_option_starts_a_run_only_if_it_is_in_the_hash(
    #[case] options: Value,
    #[case] is_in_hash: bool,
) {
    let mut world = World::applied();
    world.settings = generous();
    world.edit(|tf| tf.with(RUN, options.clone()));
    world.settle();
    assert!(world.is_ready(), "{:?}", world.status());
    assert_eq!(world.run_number(), 1 + i64::from(is_in_hash), "{options}");
    // Options of builds and defaults of the operator start no runs.
    world.edit(|tf| tf.with(BUILD, options.clone()));
    world.settings.pods.runs = serde_json::from_value(options).unwrap();
    world.settle();
    assert_eq!(world.run_number(), 1 + i64::from(is_in_hash));
}

#[test]
fn more_memory_resumes_a_resource_that_is_out_of_memory() {
    let mut world = World::new();
    for _ in 0..2 {
        world.run_to(Stage::Planning);
        world.termination = Some("OOMKilled, exit code 137".to_owned());
        world.advance_pod(0, PodEvent::Kill);
        let requeue_at = world.reconcile().decision.requeue_at;
        world.now = requeue_at.unwrap_or(world.now);
    }
    assert!(world.is_stalled());
    assert_eq!(world.reason(), "OutOfMemory");
    let message = world.status().message;
    let expected = "the memory limit is 2Gi; increase spec.runner.pod.resources.limits.memory";
    assert!(message.contains(expected), "{message}");
    world.ledger.new_budget();
    world.termination = None;
    let resources = json!({"resources": {"limits": {"memory": "4Gi"}}});
    world.edit(|tf| tf.with(RUN, resources));
    world.settle();
    assert!(world.is_ready(), "{:?}", world.status());
}

#[test]
fn changed_options_replace_a_run_pod_that_cannot_start() {
    let mut world = World::applied();
    world.settings = generous();
    world.images.clear();
    world.builds.clear();
    world.edit(|tf| tf.with_variable("size", 1));
    world.reconcile();
    world.spawn();
    world.edit(|tf| tf.with(RUN, json!({"tolerations": [{"operator": "Exists"}]})));
    let reconciled = world.reconcile();
    let steps = step_names(&reconciled.decision.steps);
    assert_eq!(
        steps,
        [
            "SwapRecord Starting",
            "SwapReport cancel",
            "DeleteJob web-apply-2"
        ]
    );
    // A run whose pod has started is not interrupted.
    let mut world = World::new();
    world.settings = generous();
    world.run_to(Stage::Planning);
    world.edit(|tf| tf.with(RUN, json!({"nodeSelector": {"a": "b"}})));
    world.settle();
    assert!(world.is_ready() && world.run_number() == 1);
}

#[test]
fn changed_options_replace_a_build_pod_that_cannot_start() {
    let mut world = World::until(|world| !world.builds.is_empty());
    world.settings = generous();
    let unschedulable = Waiting {
        reason: Reason::Unschedulable.into(),
        message: "1 node(s) had untolerated taint".to_owned(),
    };
    for build in world.builds.values_mut() {
        build.obstacle = Some(unschedulable.clone());
    }
    let is_deletion = |steps: &[String]| {
        steps
            .iter()
            .any(|step| step.starts_with("DeleteJob alustan-build-"))
    };
    let reconciled = world.reconcile();
    assert!(!is_deletion(&step_names(&reconciled.decision.steps)));
    world.edit(|tf| tf.with(BUILD, json!({"tolerations": [{"operator": "Exists"}]})));
    let reconciled = world.reconcile();
    assert!(is_deletion(&step_names(&reconciled.decision.steps)));
    world.settle();
    assert!(world.is_ready(), "{:?}", world.status());
    // Only the resource that started a build replaces it: others may have other options.
    let mut world = World::until(|world| !world.builds.is_empty());
    for build in world.builds.values_mut() {
        build.obstacle = Some(unschedulable.clone());
        build
            .labels
            .insert("alustan.io/uid".to_owned(), "uid-of-other".to_owned());
        build.labels.insert(
            "alustan.io/pod-options".to_owned(),
            "4f6a95f0a7bf".to_owned(),
        );
    }
    let reconciled = world.reconcile();
    assert!(!is_deletion(&step_names(&reconciled.decision.steps)));
}

/// Options with references to Secrets and ConfigMaps in every place.
fn references() -> Value {
    json!({
        "volumes": [
            {"name": "a", "secret": {"secretName": "s"}},
            {"name": "b", "configMap": {"name": "c"}},
            {"name": "d", "projected": {"sources": [{"secret": {"name": "s"}}, {"configMap": {"name": "c"}}]}},
        ],
        "env": [
            {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}},
        ],
        "envFrom": [{"secretRef": {"name": "s"}}, {"configMapRef": {"name": "c"}}],
    })
}

/// Returns the number of references in `value`, and how many of them are optional.
fn count_references(value: &Value) -> (usize, usize) {
    let nested: Vec<&Value> = match value {
        Value::Array(list) => list.iter().collect(),
        Value::Object(fields) => fields.values().collect(),
        _ => Vec::new(),
    };
    let names = ["s", "c"].map(Value::from);
    let is_reference = ["name", "secretName"]
        .iter()
        .any(|key| names.contains(&value[*key]));
    let own = (
        usize::from(is_reference),
        usize::from(is_reference && value["optional"] == true),
    );
    nested
        .into_iter()
        .map(count_references)
        .fold(own, |sum, more| (sum.0 + more.0, sum.1 + more.1))
}

#[test]
fn references_of_pod_options_are_optional_for_destroy() {
    let tf = terraform().with(RUN, references());
    let count = |destroys| {
        let options = of_run(&tf, None, destroys, &BTreeSet::new(), &settings());
        count_references(&serde_json::to_value(options).unwrap())
    };
    assert_eq!([count(false), count(true)], [(8, 0), (8, 8)]);
    let mut world = World::with(tf);
    world.settle();
    assert!(world.is_ready());
    world.delete();
    let created = CreatedObjects::by_destroying(world);
    let made = serde_json::to_value(pod(created.job("web-destroy-2"))).unwrap();
    assert_eq!(count_references(&made), (8, 8));
}

#[test]
fn destroy_uses_pinned_options_if_current_ones_are_refused() {
    let mut world =
        World::with(terraform().with(RUN, json!({"nodeSelector": {"pool": "applied"}})));
    world.settle();
    world.edit(|tf| tf.with(RUN, json!({"priorityClassName": "batch"})));
    world.settle();
    assert!(world.is_stalled());
    world.delete();
    let created = CreatedObjects::by_destroying(world);
    let made = pod(created.job("web-destroy-2"));
    assert_eq!(made.priority_class_name, None);
    assert_eq!(made.node_selector.unwrap()["pool"], "applied");
}

/// The pin contains the options of the last apply. After that, the administrator may have forbidden them.
#[test]
fn destroy_uses_only_the_environment_of_pinned_options_that_are_refused() {
    let options = json!({"priorityClassName": "batch", "env": [{"name": "REGION", "value": "a"}]});
    let mut world = World::with(terraform().with(RUN, options));
    world.settings = generous();
    world.settle();
    world.settings = settings();
    world.settle();
    world.delete();
    let created = CreatedObjects::by_destroying(world);
    let job = created.job("web-destroy-2");
    assert_eq!(pod(job).priority_class_name, None);
    let (env, _) = names(&container(job, "terraform"));
    assert!(env.contains(&"REGION".to_owned()), "{env:?}");
}

/// Variables of a pod take precedence over those of `envFrom`.
#[test]
fn variables_of_env_from_cannot_move_paths_of_the_runner() {
    let options = json!({"envFrom": [{"configMapRef": {"name": "a"}}]});
    let mut world = World::with(terraform().with(RUN, options));
    world.settle();
    world.delete();
    let created = CreatedObjects::by_destroying(world);
    let (env, _) = names(&container(created.job("web-destroy-2"), "terraform"));
    for name in ["ALUSTAN_KUBECONFIG", "ALUSTAN_MODULE_DIR"] {
        assert!(env.contains(&name.to_owned()), "{env:?}");
    }
}

/// An approval covers the pod options of its run, so a Job that is missing is not created with other options.
#[rstest]
#[case::git_responds(true)]
#[case::git_is_down(false)]
fn missing_job_is_not_created_with_other_pod_options(#[case] git_up: bool) {
    let mut world = World::new();
    world.run_to(Stage::Created);
    let job = world.jobs.keys().next().unwrap().clone();
    world.delete_job(&job);
    world.edit(|tf| tf.with(RUN, json!({"env": [{"name": "REGION", "value": "b"}]})));
    world.git_up = git_up;
    for _ in 0..3 {
        world.reconcile();
        assert!(!world.jobs.contains_key(&job));
    }
    world.git_up = true;
    world.settle();
    assert!(world.is_ready(), "{:?}", world.status());
}

/// The pin has the options of the run, so the Job can be created although the spec is refused.
#[test]
fn missing_job_is_created_with_pinned_options_if_current_ones_are_refused() {
    let pool = json!({"nodeSelector": {"pool": "applied"}});
    let mut world = World::with(terraform().with(RUN, pool));
    world.settle();
    world.edit(|tf| tf.with_variable("size", 2));
    world.run_to(Stage::Created);
    let job = world.jobs.keys().last().unwrap().clone();
    world.delete_job(&job);
    world.edit(|tf| tf.with(RUN, json!({"priorityClassName": "batch"})));
    world.reconcile();
    world.reconcile();
    assert!(world.jobs.contains_key(&job), "{:?}", world.status());
}

#[test]
fn variables_from_secrets_are_named_for_masking() {
    let options = serde_json::from_value(json!({
        "env": [
            {"name": "A", "value": "x"},
            {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        ],
        "envFrom": [
            {"prefix": "P_", "secretRef": {"name": "s"}},
            {"secretRef": {"name": "missing"}},
            {"configMapRef": {"name": "s"}},
        ],
    }))
    .unwrap();
    let keys = BTreeMap::from([(
        "s".to_owned(),
        BTreeSet::from(["k".to_owned(), "l".to_owned()]),
    )]);
    let named = secret_variables(&options, &keys);
    assert_eq!(
        named,
        BTreeSet::from(["B", "P_k", "P_l"].map(str::to_owned))
    );
}

#[test]
fn refused_defaults_name_section_and_option() {
    let defaults = policy(json!({"builds": {"volumes": [{"name": "git", "emptyDir": {}}]}}));
    let error = check_policy(&defaults, &BTreeMap::new()).unwrap_err();
    assert!(
        error.starts_with("builds.volumes[0].name: the operator has a volume git"),
        "{error}"
    );
    let maximum = policy(json!({"maximum": {"resources": {"cpu": "many"}}}));
    let error = check_policy(&maximum, &BTreeMap::new()).unwrap_err();
    assert!(
        error.starts_with("maximum.resources.cpu: \"many\" is not a quantity"),
        "{error}"
    );
}
