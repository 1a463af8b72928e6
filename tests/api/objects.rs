//! A real API server validates all objects that the operator creates, and PodSecurity validates the pods.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;

use alustan_api::run::{
    ApprovalInputs, BUILD_PROTOCOL, BackendInputs, EngineArguments, History, ManagedState, Output,
    Outputs, PROTOCOL, Pin, PinnedImage, RunInputs, RunKind, RunProgress, RunRecord, RunSpec,
    ScriptTexts, TimeLimits, Trigger,
};
use alustan_api::{Architecture, BuilderKind, FIELD_MANAGER, Mode, Terraform, labels, names};
use alustan_core::model::cache_location::CacheMount;
use alustan_core::model::{image, pod_options};
use alustan_core::objects::build_job::{self, Build};
use alustan_core::objects::outputs::SelectedOutputs;
use alustan_core::objects::run_job::{self, RunJobInputs};
use alustan_core::objects::{
    cache_pvc, empty_cache, outputs as outputs_of, pod_disruption_budget, rbac, secrets,
};
use alustan_core::observed::SourceSeen;
use alustan_core::pod_policy::PodPolicy;
use alustan_core::settings::{CacheDefault, KANIKO, KANIKO_CAPABILITIES, PodUser, Settings};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{LimitRange, Pod, ResourceQuota, ServiceAccount};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::core::NamespaceResourceScope;
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::server::{OPERATOR, Server, until};
use crate::space::{Space, resource, with_all};

const DIGEST: &str = "sha256:4f6a95f0a7bf84454f6a95f0a7bf84454f6a95f0a7bf84454f6a95f0a7bf8445";

fn settings() -> Settings {
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    Settings {
        base_image: "registry.test/base:1".to_owned(),
        engines: Vec::new(),
        builder: BuilderKind::Kaniko,
        builder_image: KANIKO.to_owned(),
        builder_args: Vec::new(),
        builder_capabilities: KANIKO_CAPABILITIES.map(str::to_owned).to_vec(),
        builder_user_namespaces: true,
        build_namespace: None,
        operator_image: "registry.test/operator:1".to_owned(),
        insecure_registries: vec!["registry.test".to_owned()],
        ca_bundle: Some("-----BEGIN CERTIFICATE-----\n".to_owned()),
        architecture: None,
        own_architecture: Architecture::own(),
        pod_user: PodUser::Id(65532),
        cli_config: None,
        environment: BTreeMap::from([pair("HTTPS_PROXY", "http://proxy.test:3128")]),
        dockerfiles: false,
        identity_registries: Vec::new(),
        scheduling_timeout: SignedDuration::from_mins(20),
        max_timeout: SignedDuration::from_hours(24),
        cross_namespace_refs: false,
        marks_namespaces: true,
        pods: PodPolicy::default(),
        cache: CacheDefault::PerResource,
    }
}

fn state(name: &str) -> ManagedState {
    ManagedState {
        pointer: names::state(name),
        slots: (0..3).map(|slot| names::state_slot(name, slot)).collect(),
    }
}

pub(crate) fn run_inputs(name: &str) -> RunInputs {
    RunInputs {
        path: "web".to_owned(),
        variables: BTreeMap::from([("size".to_owned(), json!(3))]),
        own_variables: BTreeSet::new(),
        strict_variables: false,
        var_files: Vec::new(),
        secret_variables: BTreeSet::new(),
        secret_environment: BTreeSet::new(),
        scripts: ScriptTexts::default(),
        wrapper: None,
        backend: BackendInputs {
            kind: Some("http".to_owned()),
            write_block: true,
            config: BTreeMap::new(),
            environment: BTreeMap::new(),
            secret_config: BTreeMap::new(),
            bootstrap: None,
            workspace: None,
            managed: Some(state(name)),
        },
        timeouts: TimeLimits {
            plan: 1,
            apply: 1,
            destroy: 1,
        },
        engine_arguments: EngineArguments::default(),
        approval: ApprovalInputs::default(),
        adopt: false,
        migrate: None,
        engine_before: None,
        applied_before: false,
        plan_secret: None,
        environment: BTreeMap::new(),
        service_account: None,
    }
}

/// Returns the Jobs of every kind of run, and of builds with the operator's base image and with another base image.
fn jobs(tf: &Terraform, settings: &Settings) -> Vec<Job> {
    let name = tf.name_any();
    let kinds = [
        RunKind::Plan,
        RunKind::Apply,
        RunKind::Drift,
        RunKind::Destroy,
    ];
    let run_pod = pod_options::of_run(tf, None, false, &BTreeSet::new(), settings);
    let build_pod = pod_options::of_build(tf, settings);
    let mut jobs: Vec<Job> = kinds
        .into_iter()
        .map(|kind| {
            let run = RunSpec {
                kind,
                trigger: Trigger::Created,
                job: names::run_job(&name, kind, 9_999),
                revision: None,
                commit: None,
                context: None,
                artifact: Some(format!("registry.test/team/web@{DIGEST}")),
                cache: true,
                cache_claim: (kind == RunKind::Drift).then(|| "plans".to_owned()),
                unpack: kind == RunKind::Destroy,
                image: format!("registry.test/team/web@{DIGEST}"),
                architecture: Architecture::own(),
                tag: "4f6a95f0".to_owned(),
                config_hash: "0".to_owned(),
                own_hash: String::new(),
                found: BTreeMap::new(),
                judged_by: String::new(),
                pod: String::new(),
                destroys: false,
                mode: Mode::Apply,
                engine: None,
                trace_id: String::new(),
                protocol: PROTOCOL,
                started_at: Timestamp::UNIX_EPOCH,
            };
            let pull = [names::pull_secret(&name)];
            let parts = RunJobInputs {
                number: 9_999,
                run: &run,
                inputs: "digest",
                decision: "digest",
                path: "web",
                pull_secrets: &pull,
                docker: Some(("regcred", ".dockerconfigjson")),
                account: None,
                token_secret: None,
                pod: &run_pod,
            };
            run_job::job(tf, &parts, settings)
        })
        .collect();
    let source = SourceSeen {
        revision: "4f6a95f0a7bf8445".to_owned(),
        commit: None,
        context: DIGEST.to_owned(),
        artifact: DIGEST.to_owned(),
        path: "web".to_owned(),
        backend: None,
        committed_at: Timestamp::UNIX_EPOCH,
    };
    for reference in ["registry.test/base:1", "elsewhere.test/base:1"] {
        let base = PinnedImage {
            reference: reference.to_owned(),
            resolved: format!("{reference}@{DIGEST}"),
            asked: None,
            engine: None,
            protocol: PROTOCOL,
            build_protocol: Some(BUILD_PROTOCOL),
        };
        let image = image::plan(
            tf,
            &source,
            &base,
            Architecture::own(),
            "namespace-uid",
            settings,
        );
        let build = Build {
            image: &image,
            artifact: &format!("registry.test/team/web@{DIGEST}"),
            path: "web",
            created: Timestamp::UNIX_EPOCH,
            docker: Some(("regcred", ".dockerconfigjson")),
            pull_secret: Some("regcred"),
            build_secret: None,
            token_secret: None,
            namespace_uid: "namespace-uid",
            cache: &CacheMount::Own,
            pod: &build_pod,
            pod_digest: "4f6a95f0a7bf",
        };
        jobs.push(build_job::job(tf, &build, settings));
    }
    let architecture = Architecture::own();
    jobs.push(empty_cache::job(tf, "plans", 9_999, architecture, settings));
    jobs
}

/// Applies a resource `name` with all fields that affect pods.
async fn stored(space: &Space, name: &str) -> Terraform {
    // The name of a build Job contains a digest that covers the image repository. Each resource has a separate image repository, so that
    // each resource gets a separate build Job.
    let image = format!("registry.test/team/{name}");
    let pod = json!({
        "resources": {"requests": {"cpu": 1}, "limits": {"memory": "4Gi", "example.com/gpu": "1"}},
        "nodeSelector": {"pool": "terraform"},
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{
            "weight": 1,
            "podAffinityTerm": {
                "topologyKey": "kubernetes.io/hostname",
                "labelSelector": {"matchLabels": {"a": "b"}},
            },
        }]}},
        "topologySpreadConstraints": [{
            "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {"a": "b"}},
        }],
        "imagePullSecrets": [{"name": "more"}],
        "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["git.test"]}],
        "dnsConfig": {"nameservers": ["10.0.0.2"]},
        "volumes": [
            {"name": "ca", "configMap": {"name": "ca", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"name": "login", "secret": {"secretName": "login"}},
            {"name": "both", "projected": {"sources": [{"secret": {"name": "login"}}, {"configMap": {"name": "ca"}}]}},
            {"name": "more", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
            {"name": "most", "emptyDir": {}},
        ],
        "volumeMounts": [
            {"name": "ca", "mountPath": "/etc/company", "readOnly": true},
            {"name": "login", "mountPath": "/etc/login", "subPath": "token"},
            {"name": "both", "mountPath": "/etc/both"},
            {"name": "more", "mountPath": "/mnt/more"},
        ],
        "env": [
            {"name": "A", "value": "b"},
            {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "login", "key": "token"}}},
        ],
        "envFrom": [{"prefix": "B_", "configMapRef": {"name": "settings"}}],
        "terminationGracePeriodSeconds": 900,
    });
    let tf = with_all(
        resource(name),
        json!({
            "/containerRegistry/secretRef": {"name": "regcred", "key": ".dockerconfigjson"},
            "/runner/envFromSecrets": [{"name": "cloud"}],
            "/containerRegistry/imageName": image,
            "/cache/storageClassName": "fast",
            "/containerRegistry/provider": "azure",
            "/containerRegistry/serviceAccountName": "pusher",
            "/runner/pod": pod,
            "/containerRegistry/builder/pod": pod,
        }),
    );
    serde_json::from_value(space.apply(&tf).await.unwrap()).unwrap()
}

async fn ensure<K>(space: &Space, object: &K)
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Serialize
        + DeserializeOwned
        + Clone
        + Debug,
{
    let client = space.server.client_as(OPERATOR).await;
    let api: Api<K> = Api::namespaced(client, &space.namespace);
    let parameters = PatchParams::apply(FIELD_MANAGER)
        .force()
        .validation_strict();
    let name = object.name_any();
    let object_name = format!("{} {name}", K::kind(&()));
    let patch = Patch::Apply(object);
    let made = api
        .patch(&name, &parameters, &patch)
        .await
        .unwrap_or_else(|error| panic!("{object_name}: {error}"));
    assert_eq!(
        made.labels()[labels::MANAGED_BY],
        labels::MANAGER,
        "{object_name}"
    );
    assert!(made.owner_references().is_empty(), "{object_name}");
    let again = api.patch(&name, &parameters, &patch).await.unwrap();
    let versions = [&made, &again].map(ResourceExt::resource_version);
    assert_eq!(versions[0], versions[1], "{object_name}: applied again");
}

/// Creates `object` with the rights of the operator. Applies it as a dry run first, because kube supports strict validation only for
/// patches.
async fn create<K>(space: &Space, object: &K) -> K
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Serialize
        + DeserializeOwned
        + Clone
        + Debug,
{
    let object_name = format!("{} {}", K::kind(&()), object.name_any());
    let parameters = PatchParams::apply("tests").dry_run().validation_strict();
    let patch = Patch::Apply(object);
    space
        .api::<K>()
        .patch(&object.name_any(), &parameters, &patch)
        .await
        .unwrap_or_else(|error| panic!("{object_name}: {error}"));
    let client = space.server.client_as(OPERATOR).await;
    let api: Api<K> = Api::namespaced(client, &space.namespace);
    api.create(&PostParams::default(), object)
        .await
        .unwrap_or_else(|error| panic!("{object_name}: {error}"))
}

/// The test uses the operator's ServiceAccount, which may create the Role of a runner only if it has all rights of that Role.
#[tokio::test]
async fn operator_may_create_all_its_objects() {
    let space = Space::new().await;
    for name in ["w", "web-2", "web.prod", &"n".repeat(names::MAX_NAME)] {
        let tf = stored(&space, name).await;
        let managed = state(name);
        ensure(&space, &rbac::account(&tf)).await;
        ensure(&space, &rbac::role(&tf, &run_inputs(&tf.name_any()))).await;
        ensure(&space, &rbac::binding(&tf, &run_inputs(&tf.name_any()))).await;
        ensure(&space, &pod_disruption_budget::budget(&tf)).await;
        create(&space, &cache_pvc::claim(&tf)).await;
        let pin = Pin {
            number: 1,
            image: format!("registry.test/team/web@{DIGEST}"),
            architecture: Architecture::own(),
            tag: "4f6a95f0".to_owned(),
            revision: None,
            context: None,
            artifact: None,
            base: None,
            protocol: PROTOCOL,
            pull_secret: None,
            docker_config: None,
            spec: json!({}),
            inputs: run_inputs(name),
            environment: BTreeMap::new(),
            before: None,
        };
        let output = Output {
            value: json!([1, 2]),
            sensitive: true,
        };
        let outputs = SelectedOutputs {
            outputs: Outputs::from([("said".to_owned(), output)]),
            ..SelectedOutputs::default()
        };
        let config_map = outputs_of::config_map(&tf, format!("{name}-told"), &outputs);
        ensure(&space, &config_map).await;
        let mut made = vec![
            secrets::record(&tf, &RunRecord::default(), &History::default()),
            secrets::report(&tf, &RunProgress::default()),
            secrets::pin(&tf, &pin),
            outputs_of::secret(&tf, &outputs),
            secrets::pull(&tf, r#"{"auths":{}}"#),
        ];
        made.push(secrets::pointer(&tf, &managed));
        made.extend(secrets::slots(&tf, &managed));
        for secret in &made {
            ensure(&space, secret).await;
        }
        for job in jobs(&tf, &settings()) {
            let created = create(&space, &job).await;
            let spec = created.spec.unwrap();
            assert_eq!(spec.backoff_limit, Some(0));
            assert_eq!(spec.pod_replacement_policy.as_deref(), Some("Failed"));
        }
    }
}

/// The operator applies a state slot as a Secret without data. If the runner has written data to the Secret, a second apply keeps the data.
#[tokio::test]
async fn apply_of_a_state_slot_keeps_its_data() {
    let space = Space::new().await;
    let tf = stored(&space, "web").await;
    let slot = secrets::slots(&tf, &state("web")).next().unwrap();
    ensure(&space, &slot).await;
    let data = json!({"data": {"chunk": "c3RhdGU="}});
    let api = space.api::<k8s_openapi::api::core::v1::Secret>();
    let name = slot.name_any();
    api.patch(&name, &PatchParams::default(), &Patch::Merge(&data))
        .await
        .unwrap();
    ensure(&space, &slot).await;
    let kept = api.get(&name).await.unwrap().data.unwrap();
    assert_eq!(kept["chunk"].0, b"state");
}

fn pod_of(job: &Job, name: &str) -> Pod {
    let template = job.spec.clone().unwrap().template;
    let mut pod = Pod {
        metadata: template.metadata.unwrap_or_default(),
        spec: template.spec,
        status: None,
    };
    pod.metadata.name = Some(name.to_owned());
    pod
}

#[tokio::test]
async fn all_pods_except_builds_meet_podsecurity_restricted() {
    let server = Server::shared().await;
    let enforce = "pod-security.kubernetes.io/enforce";
    for level in ["restricted", "baseline"] {
        let space = Space::of(&server, json!({enforce: level})).await;
        let tf = stored(&space, "web").await;
        for name in ["default", "pusher", &names::runner("web")] {
            space
                .create::<ServiceAccount>(json!({"metadata": {"name": name}}))
                .await;
        }
        for job in jobs(&tf, &settings()) {
            let is_build = job.labels()[labels::COMPONENT] == "build";
            let pod = pod_of(&job, "pod");
            let dry = PostParams {
                dry_run: true,
                ..PostParams::default()
            };
            let admitted = space.api::<Pod>().create(&dry, &pod).await;
            let name = job.name_any();
            match admitted {
                Ok(_) => assert!(!is_build || level == "baseline", "{name} is admitted"),
                Err(error) => {
                    let message = error.to_string();
                    assert!(
                        is_build && level == "restricted",
                        "{name} in {level}: {message}"
                    );
                    assert!(message.contains("\"build\""), "{message}");
                    for container in ["pull", "prepare", "inject"] {
                        assert!(!message.contains(container), "{name}: {message}");
                    }
                }
            }
        }
    }
}

/// Quota of [`limited_space`]. It covers all resources, so each container must have a request and a limit for each of them.
const QUOTA: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];

/// Creates a namespace with a `ResourceQuota` on all resources, and with PodSecurity *restricted*.
async fn limited_space(server: &Arc<Server>) -> Space {
    let labels = json!({"pod-security.kubernetes.io/enforce": "restricted"});
    let space = Space::of(server, labels).await;
    for name in ["default", &names::runner("web")] {
        space
            .create::<ServiceAccount>(json!({"metadata": {"name": name}}))
            .await;
    }
    let [hard, used] = ["100Gi", "0"].map(|amount| QUOTA.map(|name| (name, amount)));
    let (hard, used) = (BTreeMap::from(hard), BTreeMap::from(used));
    space
        .create::<ResourceQuota>(json!({"metadata": {"name": "all"}, "spec": {"hard": hard}}))
        .await;
    // The server has no quota controller, which writes the status.
    let status = Patch::Merge(json!({"status": {"hard": hard, "used": used}}));
    let quotas = space.api::<ResourceQuota>();
    let edit = PatchParams::default();
    quotas.patch_status("all", &edit, &status).await.unwrap();
    space
}

/// Returns the refusals of the API server of the pods of all Jobs of `tf`, with an operator that has these `settings`.
async fn refusals(space: &Space, tf: &Terraform, settings: &Settings) -> Vec<String> {
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let mut refusals = Vec::new();
    for job in jobs(tf, settings) {
        let pod = pod_of(&job, "pod");
        let created = space.api::<Pod>().create(&dry, &pod).await;
        refusals.extend(created.err().map(|error| error.to_string()));
    }
    refusals
}

/// The settings of docs/clusters.md for namespaces with limits on all resources.
#[tokio::test]
async fn pods_with_all_resources_meet_quota_limit_range_and_podsecurity() {
    let server = Server::shared().await;
    let space = limited_space(&server).await;
    let tf = space.apply(&resource("web")).await.unwrap();
    let tf: Terraform = serde_json::from_value(tf).unwrap();
    let mut settings = Settings {
        builder: BuilderKind::Append,
        pod_user: PodUser::Id(1_000_650_000),
        ..settings()
    };
    let pods = jobs(&tf, &settings).len();
    until("the quota to refuse pods", async || {
        let refusals = refusals(&space, &tf, &settings).await;
        let named = |message: &&String| {
            message.contains("must specify") && message.contains("limits.cpu for: ")
        };
        let all = refusals.iter().filter(named).count() == pods;
        all.then_some(()).ok_or_else(|| refusals.join("\n"))
    })
    .await;
    let options = json!({"resources": {
        "requests": {"cpu": "500m", "memory": "2Gi", "ephemeral-storage": "2Gi"},
        "limits": {"cpu": "1", "memory": "2Gi", "ephemeral-storage": "4Gi"},
    }});
    let defaults = json!({"runs": options, "builds": options});
    settings.pods = serde_json::from_value(defaults).unwrap();
    assert_eq!(refusals(&space, &tf, &settings).await, Vec::<String>::new());
    let range = json!({
        "metadata": {"name": "containers"},
        "spec": {"limits": [{
            "type": "Container",
            "min": {"cpu": "250m", "memory": "512Mi", "ephemeral-storage": "1Gi"},
            "max": {"cpu": "2", "memory": "4Gi", "ephemeral-storage": "10Gi"},
            "maxLimitRequestRatio": {"memory": "1"},
        }]},
    });
    space.create::<LimitRange>(range).await;
    let defaults = std::mem::take(&mut settings.pods);
    until("the LimitRange to refuse pods", async || {
        let refusals = refusals(&space, &tf, &settings).await;
        let named = |message: &&String| {
            message.contains("minimum memory usage per Container is 512Mi")
                && message.contains("memory max limit to request ratio per Container is 1")
        };
        let all = refusals.iter().filter(named).count() == pods;
        all.then_some(()).ok_or_else(|| refusals.join("\n"))
    })
    .await;
    settings.pods = defaults;
    assert_eq!(refusals(&space, &tf, &settings).await, Vec::<String>::new());
}
