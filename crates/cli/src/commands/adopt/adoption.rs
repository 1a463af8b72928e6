//! Result of a mapping: the resource, the notes about fields, and the steps of the user.

use std::collections::BTreeSet;

use alustan_api::Terraform;
use alustan_api::labels::ALLOW_RUNS;
use kube::Resource as _;
use serde_json::{Map, Value, json};

use super::fields::Note;
use super::state::Summary;
use super::values::{is_reference, resource_type};
use crate::record::quoted;

/// Values from the command line.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options {
    /// Name of the `Terraform` resource.
    pub(crate) name: String,
    /// Namespace of the `Terraform` resource and of the other object.
    pub(crate) namespace: String,
    /// `spec.containerRegistry.imageName`.
    pub(crate) image_name: String,
    /// Secret of type `kubernetes.io/dockerconfigjson` with the credentials of the registry.
    pub(crate) registry_secret: Option<String>,
    /// `spec.gitRepo.url`. Takes precedence over the URL of the other object.
    pub(crate) url: Option<String>,
    /// `spec.gitRepo.branch`. Takes precedence over the revision of the other object.
    pub(crate) branch: Option<String>,
    /// `spec.gitRepo.path`. Takes precedence over the path of the other object.
    pub(crate) path: Option<String>,
}

#[cfg(test)]
impl Options {
    /// Returns the required options, for resource `web` in namespace `team`.
    pub(crate) fn of_test() -> Self {
        Self {
            name: "web".into(),
            namespace: "team".into(),
            image_name: "registry.test/web".into(),
            ..Self::default()
        }
    }
}

/// Step of the user, with the commands of the step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) text: String,
    pub(crate) commands: Vec<String>,
}

impl Step {
    /// Builds a step.
    pub(crate) fn new(text: impl Into<String>, commands: impl IntoIterator<Item = String>) -> Self {
        Self {
            text: text.into(),
            commands: commands.into_iter().collect(),
        }
    }
}

/// Change that stops the other operator from applying.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Stop {
    /// Merge patch of the other object.
    pub(crate) patch: Value,
    /// Effect of the patch, for messages. Example: `suspended`.
    pub(crate) effect: &'static str,
}

/// Mapping of an object of another operator.
#[derive(Debug, Default)]
pub(crate) struct Adoption {
    name: String,
    namespace: String,
    spec: Map<String, Value>,
    /// Notes about fields and values.
    pub(crate) notes: BTreeSet<Note>,
    /// Facts about the state.
    pub(crate) facts: Vec<String>,
    /// Steps between the creation of the resource and its first run.
    pub(crate) steps: Vec<Step>,
    /// Steps after the adoption.
    pub(crate) cleanup: Vec<Step>,
    /// Change of the other object.
    pub(crate) stop: Option<Stop>,
}

impl Adoption {
    /// Creates the mapping of an empty object: a suspended resource that adopts its state.
    pub(crate) fn new(options: &Options) -> Self {
        let mut adoption = Self {
            name: options.name.clone(),
            namespace: options.namespace.clone(),
            ..Self::default()
        };
        adoption.set("suspend", json!(true));
        adoption.set("backend.adopt", json!(true));
        adoption.set("containerRegistry.imageName", json!(options.image_name));
        if let Some(secret) = &options.registry_secret {
            let secret = json!({"name": secret, "key": ".dockerconfigjson"});
            adoption.set("containerRegistry.secretRef", secret);
        }
        adoption
    }

    /// Sets the field `path` below `spec`, for example `gitRepo.url`.
    pub(crate) fn set(&mut self, path: &str, value: Value) {
        set(&mut self.spec, path, value);
    }

    /// Sets the branch to `branch`, the value of `field` of the other object, unless the command line has set it.
    pub(crate) fn set_branch(&mut self, field: &'static str, branch: Option<&str>) {
        let Some(branch) = branch.filter(|_| self.get("gitRepo.branch").is_none()) else {
            return;
        };
        if is_reference(branch) {
            self.set("gitRepo.branch", json!(branch));
        } else {
            let text = "is not valid and is not copied: the default branch applies";
            self.note(Note::lacks(field, text));
        }
    }

    /// Adds a note.
    pub(crate) fn note(&mut self, note: Note) {
        self.notes.insert(note);
    }

    /// Makes each plan wait for approval. With `is_auto`, a step after the adoption applies plans without approval, as the other operator
    /// does. The first plan must not be applied without approval: at a wrong state address, it creates every object again.
    pub(crate) fn approve_later(&mut self, is_auto: bool) {
        self.set("approval.mode", json!("Manual"));
        if is_auto {
            let text = "Apply later plans without approval, as before";
            let command = self.patch(r#"{"spec":{"approval":{"mode":"Auto"}}}"#);
            self.cleanup.push(Step::new(text, [command]));
        }
    }

    /// Uses the managed state, and adds the step that pushes the current state. `pull` is the command that prints the current state.
    pub(crate) fn push_state(&mut self, text: &str, pull: &str) {
        let file = format!("{}.tfstate", self.name);
        let text = format!("{text}. The file contains secrets: delete it after the push");
        self.push(&text, Some(format!("{pull} > {file}")), &file);
    }

    /// Uses the managed state, and adds the step that pushes the state in `file`.
    pub(crate) fn push_file(&mut self, text: &str, file: &str) {
        self.push(text, None, file);
    }

    fn push(&mut self, text: &str, pull: Option<String>, file: &str) {
        self.set("backend.provider", json!("managed"));
        let (namespace, name) = self.key();
        let push = format!(
            "kubectl alustan state push {name} {} -n {namespace}",
            quoted(file)
        );
        let commands = pull.into_iter().chain([push]);
        self.steps.push(Step::new(text, commands));
    }

    /// Records facts about the state, and selects `OpenTofu` if the state needs it.
    pub(crate) fn describe_state(&mut self, state: &Summary) {
        self.facts.push(state.describe());
        if state.is_opentofu {
            self.set("engine.name", json!("opentofu"));
            let text = "its providers come from the registry of OpenTofu: engine opentofu";
            self.facts.push(text.to_owned());
        }
        let text = "the engine of the resource must not be older than the engine that wrote the \
                    state (docs/engines.md)";
        self.facts.push(text.to_owned());
    }

    /// Adds the step that allows runs with the ServiceAccount `account`.
    pub(crate) fn allow_runs(&mut self, account: &str) {
        let text = format!("Allow runs with ServiceAccount {account}");
        let (namespace, _) = self.key();
        let command =
            format!("kubectl annotate serviceaccount {account} -n {namespace} {ALLOW_RUNS}=true");
        self.steps.push(Step::new(text, [command]));
    }

    /// Returns the command that patches the resource.
    fn patch(&self, patch: &str) -> String {
        let (namespace, name) = self.key();
        let kind = resource_type();
        format!("kubectl patch {kind} {name} -n {namespace} --type merge -p '{patch}'")
    }

    /// Returns the value of the field `path` below `spec`.
    pub(crate) fn get(&self, path: &str) -> Option<&Value> {
        let mut parts = path.split('.');
        let first = self.spec.get(parts.next()?)?;
        parts.try_fold(first, |value, part| value.get(part))
    }

    /// Returns namespace and name of the resource.
    pub(crate) fn key(&self) -> (&str, &str) {
        (&self.namespace, &self.name)
    }

    /// Returns the resource.
    pub(crate) fn manifest(&self) -> Value {
        json!({
            "apiVersion": Terraform::api_version(&()),
            "kind": Terraform::kind(&()),
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": self.spec,
        })
    }

    /// Returns the resource as YAML. Strings are on one line.
    pub(crate) fn yaml(&self) -> Result<String, serde_saphyr::ser::Error> {
        let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
        serde_saphyr::to_string_with_options(&self.manifest(), options)
    }
}

fn set(fields: &mut Map<String, Value>, path: &str, value: Value) {
    match path.split_once('.') {
        None => {
            fields.insert(path.to_owned(), value);
        }
        Some((first, rest)) => {
            let below = fields.entry(first).or_insert_with(|| json!({}));
            if let Value::Object(below) = below {
                set(below, rest, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yaml_keeps_strings_that_yaml_reads_as_other_types() {
        let texts = [
            "on",
            "yes",
            "n",
            "0123",
            "1e3",
            "null",
            "~",
            "",
            "- a",
            "a: b",
            "a #b",
            "1.10",
            "2026-01-01",
            "12:30",
            "two\nlines\n",
            "\u{1b}[8m",
            "x  y ",
        ];
        let options = Options {
            name: "web".into(),
            namespace: "team".into(),
            image_name: "registry.test/web".into(),
            ..Options::default()
        };
        let mut adoption = Adoption::new(&options);
        let long = format!("{} x  y ", "long ".repeat(40));
        let texts: Vec<Value> = texts
            .iter()
            .map(|text| json!(text))
            .chain([json!(long), json!(1), json!(null)])
            .collect();
        adoption.set("variables", json!({"on": texts, "no": {"1": [{}, []]}}));
        let yaml = adoption.yaml().unwrap();
        let read: Value = serde_saphyr::from_str(&yaml).unwrap();
        assert_eq!(read, adoption.manifest());
        for text in ["\"on\"", "\"0123\"", "\"1e3\"", "\"12:30\"", "\"yes\""] {
            assert!(yaml.contains(text), "{text} in {yaml}");
        }
    }

    #[test]
    fn resource_is_suspended_and_adopts_the_state() {
        let adoption = Adoption::new(&Options::default());
        assert_eq!(adoption.get("suspend"), Some(&json!(true)));
        assert_eq!(adoption.get("backend.adopt"), Some(&json!(true)));
        assert_eq!(adoption.get("backend.adopt.more"), None);
    }
}
