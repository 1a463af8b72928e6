//! Reads the file of `--pod-defaults`.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

use alustan_core::model::pod_options;
use alustan_core::pod_policy::PodPolicy;
use anyhow::{Context as _, Result, anyhow, bail};
use serde_json::Value;

/// Reads and checks the defaults and limits of pod options. Without a file, there are no defaults, and no option that requires
/// permission is allowed.
/// `environment`: environment variables that the operator sets in all containers.
///
/// # Errors
/// If the file is unreadable or not valid YAML, if it has an unknown field or a value of another type, or if it contains options that are
/// always refused.
pub(crate) fn read(file: &Path, environment: &BTreeMap<String, String>) -> Result<PodPolicy> {
    match std::fs::read_to_string(file) {
        Ok(text) => parse(&text, environment),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(PodPolicy::default()),
        Err(error) => Err(error.into()),
    }
}

fn parse(text: &str, environment: &BTreeMap<String, String>) -> Result<PodPolicy> {
    if text.trim().is_empty() {
        return Ok(PodPolicy::default());
    }
    let given: Value = serde_saphyr::from_str(text).context("invalid YAML")?;
    let policy: PodPolicy = serde_json::from_value(given.clone()).context("invalid value")?;
    let known = serde_json::to_value(&policy)?;
    if let Some(field) = unknown_field(&given, &known) {
        bail!("unknown field {field}; docs/pods.md describes the fields");
    }
    pod_options::check_policy(&policy, environment).map_err(|message| anyhow!(message))?;
    Ok(policy)
}

/// Returns the path of the first unknown field: a field in `given`, the content of the file, that is missing in `known`, the parsed value.
/// Types of Kubernetes ignore unknown fields.
fn unknown_field(given: &Value, known: &Value) -> Option<String> {
    match (given, known) {
        (Value::Object(given), Value::Object(known)) => given.iter().find_map(|(name, value)| {
            let Some(known) = known.get(name) else {
                return (!is_empty(value)).then(|| name.clone());
            };
            unknown_field(value, known).map(|path| format!("{name}.{path}"))
        }),
        (Value::Array(given), Value::Array(known)) => {
            let mut pairs = given.iter().zip(known).enumerate();
            pairs.find_map(|(index, (given, known))| {
                unknown_field(given, known).map(|path| format!("{index}.{path}"))
            })
        }
        _ => None,
    }
}

/// Whether serialization omits a field with this value.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(true) | Value::Number(_) | Value::String(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        let environment = BTreeMap::from([("HTTPS_PROXY".to_owned(), "http://proxy".to_owned())]);
        format!("{:#}", parse(text, &environment).unwrap_err())
    }

    #[test]
    fn pod_defaults_are_read_with_all_sections() {
        let text = r"
runs:
  resources: {requests: {cpu: 1}, limits: {memory: 4Gi}}
  tolerations: [{key: dedicated, operator: Exists}]
  volumes: [{name: ca, configMap: {name: company-ca, optional: false}}]
  volumeMounts: [{name: ca, mountPath: /etc/company, readOnly: true}]
builds:
  nodeSelector: {}
allowed:
  persistentVolumeClaims: true
  tolerations: [{key: dedicated}]
  annotations: [sidecar.istio.io/*]
maximum:
  resources: {memory: 8Gi}
";
        let policy = parse(text, &BTreeMap::new()).unwrap();
        let resources = policy.runs.resources.as_ref().unwrap();
        assert_eq!(resources.requests["cpu"].0, "1");
        assert!(policy.allowed.persistent_volume_claims);
        assert_eq!(policy.maximum.resources["memory"].0, "8Gi");
        assert_eq!(parse("", &BTreeMap::new()).unwrap(), PodPolicy::default());
    }

    #[test]
    fn runs_and_builds_share_options_by_a_yaml_anchor() {
        let text = "runs: &all\n  resources: {limits: {cpu: 1}}\nbuilds: *all\n";
        let policy = parse(text, &BTreeMap::new()).unwrap();
        assert_eq!(policy.runs.resources.as_ref().unwrap().limits["cpu"].0, "1");
        assert_eq!(policy.builds, policy.runs);
    }

    #[test]
    fn invalid_pod_defaults_name_the_field() {
        for (text, expected) in [
            ("runs: [", "invalid YAML"),
            ("runs: {tolerations: 1}", "invalid value"),
            ("pods: {nodeSelector: {a: b}}", "unknown field pods"),
            (
                "runs: {volumes: [{name: a, hostPath: {path: /}, emptyDir: {}}]}",
                "unknown field runs.volumes.0.hostPath",
            ),
            (
                "runs: {affinity: {nodeAfinity: {a: 1}}}",
                "unknown field runs.affinity.nodeAfinity",
            ),
            (
                "runs: {env: [{name: ALUSTAN_RUN, value: a}]}",
                "runs.env[0].name: variable ALUSTAN_RUN is set by the operator",
            ),
            (
                "runs: {env: [{name: HTTPS_PROXY, value: a}]}",
                "runs.env[0].name: variable HTTPS_PROXY is set by the operator",
            ),
            (
                "builds: {volumeMounts: [{name: a, mountPath: /etc/a}]}",
                "builds.volumeMounts: mount /etc/a names volume a, which does not exist",
            ),
            (
                "maximum: {resources: {memory: much}}",
                "maximum.resources.memory: \"much\" is not a quantity",
            ),
        ] {
            let error = error(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
