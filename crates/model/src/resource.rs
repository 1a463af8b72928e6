//! The resource of the model, the settings of its operator, and the answers of git and registry.

use std::collections::BTreeMap;

use alustan_api::{Anything, Architecture, BuilderKind, FINALIZER, Terraform};
use alustan_core::decide::prepare::{Prepared, Query};
use alustan_core::model::image::ImageSeen;
use alustan_core::observed::{Answer, SourceSeen};
use alustan_core::pod_policy::PodPolicy;
use alustan_core::settings::{CacheDefault, KANIKO, KANIKO_CAPABILITIES, PodUser, Settings};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::scenario::{Backend, Scenario};

/// Variable that the edits of the user change.
const SIZE: &str = "size";

/// Name of the resource.
pub(crate) const NAME: &str = "web";

/// HMAC key in the run record.
pub(crate) const KEY: &[u8] = b"a key of this resource";

/// Returns the time at which the model starts.
pub(crate) fn start() -> Timestamp {
    Timestamp::from_second(1_767_225_600).expect("2026 is a valid year")
}

/// Returns the resource of `scenario`, with the finalizer.
pub(crate) fn terraform(scenario: &Scenario) -> Terraform {
    let backend = match scenario.backend {
        Backend::Managed => Value::Null,
        Backend::S3 => json!({ "provider": "aws", "s3": "bucket", "region": "us-east-1" }),
    };
    let approval = if scenario.is_manual { "Manual" } else { "Auto" };
    let resource = json!({
        "apiVersion": "alustan.io/v1alpha1",
        "kind": "Terraform",
        "metadata": {
            "name": NAME, "namespace": "team", "uid": "uid-of-web", "generation": 1,
            "finalizers": [FINALIZER], "annotations": { alustan_api::KEPT: "uid-of-web" },
        },
        "spec": {
            "variables": { SIZE: 0 },
            "gitRepo": { "url": "https://git.test/team/infra", "path": "web" },
            "containerRegistry": { "imageName": "registry.test/team/web" },
            "retry": { "limit": 2 },
            "approval": { "mode": approval },
            "backend": backend,
            "cache": { "enabled": false },
        },
    });
    serde_json::from_value(resource).expect("the resource is valid")
}

/// Returns the value of the variable that the edits of the user change.
pub(crate) fn size(variables: &BTreeMap<String, Value>) -> i64 {
    variables
        .get(SIZE)
        .and_then(Value::as_i64)
        .unwrap_or_default()
}

/// Returns the configuration that the user wants: the value of the variable.
pub(crate) fn wanted(tf: &Terraform) -> i64 {
    let value = tf.spec.variables.get(SIZE).map(Anything::value);
    value.and_then(|value| value.as_i64()).unwrap_or_default()
}

/// Returns `tf` after an edit of the user.
pub(crate) fn edited(tf: &Terraform) -> Terraform {
    let mut tf = tf.clone();
    let next = wanted(&tf) + 1;
    let value = Anything::from(Value::from(next));
    tf.spec.variables.insert(SIZE.to_owned(), value);
    with_new_generation(tf)
}

/// Returns `tf` with the next generation, after a change of its spec.
pub(crate) fn with_new_generation(mut tf: Terraform) -> Terraform {
    tf.metadata.generation = tf.metadata.generation.map(|generation| generation + 1);
    tf
}

/// Returns the settings of the operator.
pub(crate) fn settings() -> Settings {
    Settings {
        base_image: "registry.test/base:1".to_owned(),
        engines: Vec::new(),
        builder: BuilderKind::Kaniko,
        builder_image: KANIKO.to_owned(),
        builder_args: Vec::new(),
        builder_capabilities: KANIKO_CAPABILITIES.map(str::to_owned).to_vec(),
        builder_user_namespaces: false,
        build_namespace: None,
        operator_image: "registry.test/operator:1".to_owned(),
        insecure_registries: Vec::new(),
        ca_bundle: None,
        architecture: None,
        own_architecture: Architecture::own(),
        pod_user: PodUser::Id(65532),
        cli_config: None,
        environment: BTreeMap::new(),
        dockerfiles: false,
        identity_registries: Vec::new(),
        scheduling_timeout: SignedDuration::from_mins(20),
        max_timeout: SignedDuration::from_hours(24),
        cross_namespace_refs: false,
        marks_namespaces: false,
        pods: PodPolicy::default(),
        cache: CacheDefault::PerResource,
    }
}

/// Returns the answers of git and registry: the module has one commit, and its runner image exists.
pub(crate) fn image(prepared: &Prepared<'_>) -> ImageSeen {
    let no_retry = Timestamp::MAX;
    let source = match prepared.source_query(no_retry) {
        Query::Needed(()) => Answer::Known(SourceSeen {
            revision: "c0ffee".to_owned(),
            context: "context".to_owned(),
            artifact: "sha256:artifact".to_owned(),
            path: "web".to_owned(),
            backend: None,
            committed_at: start(),
            commit: None,
        }),
        Query::Answered(answer) => answer,
    };
    let base = match prepared.base_query(no_retry) {
        Query::Needed(wanted) => {
            let resolved = format!("{}@sha256:base", wanted.reference);
            Answer::Known(wanted.pinned(resolved))
        }
        Query::Answered(answer) => answer,
    };
    let plan = prepared.plan(&source, &base);
    let digest = plan
        .as_ref()
        .map_or(Answer::Pending, |plan| match prepared.digest_query(plan) {
            Query::Needed(()) => Answer::Known(Some("sha256:image".to_owned())),
            Query::Answered(answer) => answer,
        });
    ImageSeen {
        source,
        base,
        plan,
        digest,
        artifact: None,
        git_token: None,
        build: None,
        is_pruning_due: false,
    }
}
