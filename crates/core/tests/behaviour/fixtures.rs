//! Builders of the test resource and of operator settings, and the trait [`Edit`] for changes to a resource.

use std::collections::BTreeMap;

use alustan_api::report::{Failure, FailureClass};
use alustan_api::{Anything, Architecture, BuilderKind, Terraform};
use alustan_core::pod_policy::PodPolicy;
use alustan_core::settings::{CacheDefault, KANIKO, KANIKO_CAPABILITIES, PodUser, Settings};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

/// Unix time of Thursday, 1 January 2026, 00:00 UTC.
pub(crate) const START: i64 = 1_767_225_600;

/// Returns the time `second` seconds after [`START`].
pub(crate) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(START + second).unwrap()
}

/// Returns the settings of the operator that most tests use.
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
        identity_registries: vec!["registry.test/team".to_owned()],
        scheduling_timeout: SignedDuration::from_mins(20),
        max_timeout: SignedDuration::from_hours(24),
        cross_namespace_refs: false,
        marks_namespaces: true,
        pods: PodPolicy::default(),
        cache: CacheDefault::PerResource,
    }
}

/// Returns resource `web` in namespace `team`, without finalizers and status.
pub(crate) fn terraform() -> Terraform {
    serde_json::from_value(json!({
        "apiVersion": "alustan.io/v1alpha1",
        "kind": "Terraform",
        "metadata": {
            "name": "web", "namespace": "team", "uid": "uid-of-web", "generation": 1,
        },
        "spec": {
            "variables": { "size": 0 },
            "gitRepo": { "url": "https://git.test/team/infra", "path": "web" },
            "containerRegistry": {
                "imageName": "registry.test/team/web",
                "secretRef": { "name": "regcred", "key": ".dockerconfigjson" },
            },
            "retry": { "limit": 2 },
            "runner": { "envFromSecrets": [{ "name": "cloud" }] },
        },
    }))
    .unwrap()
}

/// Changes to a resource in a test.
pub(crate) trait Edit: Sized {
    /// Sets the name, and a uid derived from the name.
    fn named(self, name: &str) -> Self;
    /// Sets a variable in `spec.variables`.
    fn with_variable(self, name: &str, value: impl Into<Value>) -> Self;
    /// Sets an inline script in `spec.scripts`.
    fn with_script(self, name: &str, text: &str) -> Self;
    /// Sets the part of `spec` at `pointer` (RFC 6901) to `value`.
    fn with(self, pointer: &str, value: impl Into<Value>) -> Self;
    /// Sets an annotation.
    fn annotated(self, name: &str, value: &str) -> Self;
    /// Sets the deletion timestamp.
    fn deleted(self, at: Timestamp) -> Self;
}

impl Edit for Terraform {
    fn named(mut self, name: &str) -> Self {
        self.metadata.name = Some(name.to_owned());
        self.metadata.uid = Some(format!("uid-of-{name}"));
        self
    }

    fn with_variable(mut self, name: &str, value: impl Into<Value>) -> Self {
        let variables = &mut self.spec.variables;
        variables.insert(name.to_owned(), Anything::from(value.into()));
        self
    }

    fn with_script(self, name: &str, text: &str) -> Self {
        self.with(&format!("/scripts/{name}"), json!({ "inline": text }))
    }

    fn with(mut self, pointer: &str, value: impl Into<Value>) -> Self {
        let mut spec = serde_json::to_value(&self.spec).unwrap();
        let mut value_at_pointer = &mut spec;
        for part in pointer.split('/').skip(1) {
            if value_at_pointer.is_null() {
                *value_at_pointer = json!({});
            }
            value_at_pointer = value_at_pointer
                .as_object_mut()
                .unwrap()
                .entry(part)
                .or_insert(Value::Null);
        }
        *value_at_pointer = value.into();
        self.spec = serde_json::from_value(spec).unwrap();
        self
    }

    fn annotated(mut self, name: &str, value: &str) -> Self {
        let annotations = self.metadata.annotations.get_or_insert_default();
        annotations.insert(name.to_owned(), value.to_owned());
        self
    }

    fn deleted(mut self, at: Timestamp) -> Self {
        self.metadata.deletion_timestamp = Some(Time(at));
        self
    }
}

/// Builds a failure of `class`.
pub(crate) fn failure(class: FailureClass, reason: &str, message: &str) -> Failure {
    Failure {
        class,
        reason: reason.to_owned(),
        message: message.to_owned(),
    }
}
