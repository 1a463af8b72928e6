//! Mapping of `TerraformLayer` of burrito (config.terraform.padok.cloud/v1alpha1). The state stays in the backend of the module.

mod rows;

use serde_json::{Map, Value, json};

use super::adoption::{Adoption, Options, Step, Stop};
use super::environment;
use super::fields::{Note, notes};
use super::git_source::{from_options, set_path};
use super::object::{is_true, items, text, value};
use super::pod;
use super::values::{git_url, is_object_name, is_version, relative_path};

pub(crate) use rows::{LAYER, REPOSITORY};

/// Name of the CRD of layers.
pub(crate) const CRD: &str = "terraformlayers.config.terraform.padok.cloud";
/// Annotation with the paths outside of the layer that trigger a plan. The spelling is that of burrito.
const TRIGGER_PATHS: &str =
    "/metadata/annotations/config.terraform.padok.cloud~1additionnal-trigger-paths";

/// Fields of a repository that are the defaults of its layers. A field of the layer takes precedence.
const DEFAULTS: [&str; 6] = [
    "terraform",
    "opentofu",
    "terragrunt",
    "remediationStrategy",
    "overrideRunnerSpec",
    "runHistoryPolicy",
];

/// Maps `layer`. `repository` is its `TerraformRepository`.
///
/// # Errors
/// Reason why the layer cannot be adopted.
pub(crate) fn map(
    layer: &Value,
    repository: Option<&Value>,
    options: &Options,
) -> Result<Adoption, String> {
    if value(layer, "/metadata/deletionTimestamp").is_some() {
        return Err("the object is being deleted".to_owned());
    }
    let mut adoption = Adoption::new(options);
    let shared = repository.and_then(|repository| repository.get("spec"));
    let spec = effective(layer.get("spec"), shared);
    adoption.notes = notes(LAYER, "spec.", &spec);
    if let Some(shared) = shared {
        let prefix = "TerraformRepository.spec.";
        adoption
            .notes
            .append(&mut notes(REPOSITORY, prefix, shared));
    }
    if !from_options(&mut adoption, options)? {
        set_url(&mut adoption, shared)?;
    }
    set_path(&mut adoption, "spec.path", text(&spec, "/path"));
    adoption.set_branch("spec.branch", text(&spec, "/branch"));
    set_include(&mut adoption, layer);
    set_engine(&mut adoption, &spec);
    set_policy(&mut adoption, &spec);
    environment::set(
        &mut adoption,
        &spec,
        "/overrideRunnerSpec",
        "spec.overrideRunnerSpec",
    );
    let metadata = "/overrideRunnerSpec/metadata";
    pod::set(&mut adoption, &spec, "/overrideRunnerSpec", metadata);
    set_account(&mut adoption, &spec);
    finish(&mut adoption, layer);
    Ok(adoption)
}

/// Merges the defaults of the repository into the spec of the layer, as burrito does: scalars and lists of the layer replace those of the
/// repository, objects and `envFrom` are merged.
fn effective(layer: Option<&Value>, shared: Option<&Value>) -> Value {
    let mut spec = Map::new();
    for field in DEFAULTS {
        if let Some(value) = shared.and_then(|shared| shared.get(field)) {
            spec.insert(field.to_owned(), value.clone());
        }
    }
    let mut spec = Value::Object(spec);
    let from = "/overrideRunnerSpec/envFrom";
    let environment: Vec<Value> = [shared, layer]
        .into_iter()
        .flatten()
        .flat_map(|spec| items(spec, from))
        .cloned()
        .collect();
    merge(&mut spec, layer.unwrap_or(&Value::Null));
    if let Some(merged) = spec.pointer_mut(from) {
        *merged = json!(environment);
    }
    disable_other_engine(&mut spec, layer.unwrap_or(&Value::Null));
    spec
}

fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (name, value) in from {
                merge(into.entry(name).or_insert(Value::Null), value);
            }
        }
        (_, Value::Null) => {}
        (_, Value::Array(items)) if items.is_empty() => {}
        (into, from) => *into = from.clone(),
    }
}

/// A layer that enables one engine disables the other engine of its repository.
fn disable_other_engine(spec: &mut Value, layer: &Value) {
    for (enabled, other) in [("terraform", "opentofu"), ("opentofu", "terraform")] {
        if is_true(layer, &format!("/{enabled}/enabled"))
            && let Value::Object(fields) = spec
        {
            fields.remove(other);
        }
    }
}

fn set_url(adoption: &mut Adoption, shared: Option<&Value>) -> Result<(), String> {
    let theirs = shared
        .and_then(|shared| text(shared, "/repository/url"))
        .ok_or("the TerraformRepository of the layer has no URL: set --url")?;
    let url = git_url(theirs).map_err(|error| {
        format!("spec.repository.url of the TerraformRepository {error}. Or set --url")
    })?;
    adoption.set("gitRepo.url", json!(url));
    let text = "If the repository is private, create a Secret with its credentials and set \
                spec.gitRepo.credentialsSecret or sshKeySecret (docs/git.md). burrito selects \
                credentials by URL: Secrets of type credentials.burrito.tf/repository or \
                credentials.burrito.tf/shared";
    adoption.steps.push(Step::new(text, []));
    Ok(())
}

fn set_include(adoption: &mut Adoption, layer: &Value) {
    let Some(paths) = text(layer, TRIGGER_PATHS) else {
        return;
    };
    let (valid, invalid): (Vec<_>, Vec<_>) = paths
        .split(',')
        .map(|path| relative_path(path.trim()).filter(|path| !path.is_empty()))
        .partition(Option::is_some);
    if !invalid.is_empty() {
        let text = "entries that are not paths in the repository are not copied";
        let path = "annotation additionnal-trigger-paths";
        adoption.note(Note::lacks(path, text));
    }
    if !valid.is_empty() {
        adoption.set("gitRepo.include", json!(valid));
    }
}

fn set_engine(adoption: &mut Adoption, spec: &Value) {
    let is_opentofu = is_true(spec, "/opentofu/enabled");
    let name = if is_opentofu { "opentofu" } else { "terraform" };
    let version = text(spec, &format!("/{name}/version")).filter(|version| is_version(version));
    if is_opentofu || version.is_some() {
        adoption.set("engine.name", json!(name));
    }
    if let Some(version) = version {
        adoption.set("engine.version", json!(version));
    }
}

fn set_policy(adoption: &mut Adoption, spec: &Value) {
    adoption.approve_later(is_true(spec, "/remediationStrategy/autoApply"));
    // Deletion of a layer destroys nothing.
    adoption.set("deletionPolicy", json!("Orphan"));
    let limit = spec.pointer("/remediationStrategy/onError/maxRetries");
    match limit.and_then(Value::as_i64) {
        None => {}
        Some(limit @ 1..=100) => adoption.set("retry.limit", json!(limit)),
        Some(_) => {
            let text = "is not between 1 and 100: the default of 5 failures applies";
            let path = "spec.remediationStrategy.onError.maxRetries";
            adoption.note(Note::differs(path, text));
        }
    }
}

fn set_account(adoption: &mut Adoption, spec: &Value) {
    let Some(account) = text(spec, "/overrideRunnerSpec/serviceAccountName") else {
        return;
    };
    if !is_object_name(account) {
        let text = "is not the name of an object and is not copied";
        adoption.note(Note::lacks(
            "spec.overrideRunnerSpec.serviceAccountName",
            text,
        ));
        return;
    }
    adoption.set("runner.serviceAccountName", json!(account));
    adoption.allow_runs(account);
}

fn finish(adoption: &mut Adoption, layer: &Value) {
    let fact = "the state stays in the backend of the module. A module without a `backend` block \
                has no state that outlives a pod of burrito";
    adoption.facts.push(fact.to_owned());
    adoption.stop = Some(Stop {
        patch: json!({"spec": {"remediationStrategy": {"autoApply": false}}}),
        effect: "autoApply disabled; burrito still plans",
    });
    let name = text(layer, "/metadata/name").unwrap_or_default();
    let (namespace, _) = adoption.key();
    let text = "Delete the layer. burrito destroys nothing on deletion";
    let command = format!("kubectl delete {CRD} {name} -n {namespace}");
    adoption.cleanup.push(Step::new(text, [command]));
}

#[cfg(test)]
mod tests {
    use super::super::fields::{Handling, table};
    use super::*;
    use alustan_api::Terraform;
    use rstest::rstest;

    fn layer(spec: &Value) -> Value {
        json!({"metadata": {"name": "web", "namespace": "team"}, "spec": spec})
    }

    fn repository(spec: &Value) -> Value {
        let mut repository =
            json!({"spec": {"repository": {"url": "https://git.test/team/infra"}}});
        merge(&mut repository["spec"], spec);
        repository
    }

    fn mapped(spec: &Value, shared: &Value) -> Adoption {
        map(&layer(spec), Some(&repository(shared)), &Options::of_test()).unwrap()
    }

    #[test]
    fn documentation_has_every_field_of_the_crds() {
        table::assert_documented("migration-burrito.md", LAYER);
        table::assert_documented("migration-burrito.md", REPOSITORY);
    }

    #[test]
    fn layer_is_mapped() {
        let mut layer = layer(&json!({
            "path": "stacks/web", "branch": "main", "repository": {"name": "infra", "namespace": "team"},
            "opentofu": {"enabled": true, "version": "1.10.1"},
            "remediationStrategy": {"autoApply": true, "onError": {"maxRetries": 3}},
            "overrideRunnerSpec": {"serviceAccountName": "deployer", "envFrom": [{"secretRef": {"name": "aws"}}]},
        }));
        let paths = "config.terraform.padok.cloud/additionnal-trigger-paths";
        layer["metadata"]["annotations"] = json!({paths: "modules/a, ../x"});
        let adoption = map(&layer, Some(&repository(&json!({}))), &Options::of_test()).unwrap();
        let wanted = json!({
            "suspend": true,
            "gitRepo": {
                "url": "https://git.test/team/infra", "branch": "main", "path": "stacks/web",
                "include": ["modules/a"],
            },
            "containerRegistry": {"imageName": "registry.test/web"},
            "backend": {"adopt": true},
            "engine": {"name": "opentofu", "version": "1.10.1"},
            "approval": {"mode": "Manual"},
            "deletionPolicy": "Orphan",
            "retry": {"limit": 3},
            "runner": {"serviceAccountName": "deployer", "envFromSecrets": [{"name": "aws"}]},
        });
        let manifest = adoption.manifest();
        assert_eq!(manifest["spec"], wanted);
        let _: Terraform = serde_json::from_value(manifest).unwrap();
        let patch = json!({"spec": {"remediationStrategy": {"autoApply": false}}});
        assert_eq!(adoption.stop.unwrap().patch, patch);
        assert_eq!(adoption.cleanup.len(), 2);
    }

    #[rstest]
    #[case::repository(json!({}), json!({"terraform": {"enabled": true, "version": "1.5.7"}}), json!({"name": "terraform", "version": "1.5.7"}))]
    #[case::layer_wins(
        json!({"opentofu": {"enabled": true}}),
        json!({"terraform": {"enabled": true, "version": "1.5.7"}}),
        json!({"name": "opentofu"})
    )]
    #[case::constraint(json!({"terraform": {"version": "~> 1.3.0"}}), json!({}), Value::Null)]
    fn engine_is_that_of_layer_and_repository(
        #[case] spec: Value,
        #[case] shared: Value,
        #[case] wanted: Value,
    ) {
        let adoption = mapped(&spec, &shared);
        assert_eq!(adoption.get("engine").unwrap_or(&Value::Null), &wanted);
    }

    #[test]
    fn auto_apply_of_the_layer_takes_precedence() {
        let shared = json!({"remediationStrategy": {"autoApply": true}});
        assert_eq!(mapped(&json!({}), &shared).cleanup.len(), 2);
        let layer = json!({"remediationStrategy": {"autoApply": false}});
        assert_eq!(mapped(&layer, &shared).cleanup.len(), 1);
    }

    #[test]
    fn every_field_without_an_equivalent_is_reported() {
        let shared = json!({
            "syncWindows": [{"kind": "deny"}], "maxConcurrentRunnerPods": 2, "newer": 1,
            "overrideRunnerSpec": {"image": "i", "extraPlanArgs": ["-x"]},
        });
        let spec = json!({"terragrunt": {"enabled": true}, "runHistoryPolicy": {"runs": 3}, "branch": "-x"});
        let adoption = mapped(&spec, &shared);
        let paths: Vec<&str> = adoption
            .notes
            .iter()
            .filter(|note| note.handling == Handling::Lacks)
            .map(|note| &*note.path)
            .collect();
        let wanted = [
            "TerraformRepository.spec.maxConcurrentRunnerPods",
            "TerraformRepository.spec.newer",
            "TerraformRepository.spec.syncWindows",
            "spec.branch",
            "spec.overrideRunnerSpec.extraPlanArgs",
            "spec.overrideRunnerSpec.image",
            "spec.runHistoryPolicy.runs",
            "spec.terragrunt.enabled",
        ];
        assert_eq!(paths, wanted);
    }

    #[test]
    fn environment_of_layer_and_repository_is_merged() {
        let environment = |name: &str| json!({"overrideRunnerSpec": {"envFrom": [{"secretRef": {"name": name}}]}});
        let adoption = mapped(&environment("aws"), &environment("proxy"));
        let wanted = json!([{"name": "proxy"}, {"name": "aws"}]);
        assert_eq!(adoption.get("runner.envFromSecrets"), Some(&wanted));
    }

    #[test]
    fn layer_without_repository_needs_a_url() {
        let error = map(&layer(&json!({})), None, &Options::of_test()).unwrap_err();
        assert!(error.contains("--url"), "{error}");
    }
}
