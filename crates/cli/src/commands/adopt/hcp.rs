//! Mapping of `Workspace` of the HCP Terraform operator (app.terraform.io/v1alpha2). The state is in HCP Terraform and needs an API token, which
//! is not read: the user pulls the state.

mod rows;

use serde_json::{Value, json};

use super::adoption::{Adoption, Options, Step, Stop};
use super::backend_block::parse_literal;
use super::environment::source;
use super::fields::{Note, notes};
use super::git_source::{from_options, set_path};
use super::object::{is_true, items, text, value};
use super::values::{is_identifier, is_version};

pub(crate) use rows::ROWS;

/// Name of the CRD.
pub(crate) const CRD: &str = "workspaces.app.terraform.io";
/// Maximum number of entries of `variablesFrom` (CRD).
const MAX_SOURCES: usize = 50;

/// Maps `workspace`.
///
/// # Errors
/// Reason why the workspace cannot be adopted.
pub(crate) fn map(workspace: &Value, options: &Options) -> Result<Adoption, String> {
    if value(workspace, "/metadata/deletionTimestamp").is_some() {
        return Err("the object is being deleted".to_owned());
    }
    let mut adoption = Adoption::new(options);
    let spec = workspace.get("spec").unwrap_or(&Value::Null);
    adoption.notes = notes(ROWS, "spec.", spec);
    if !from_options(&mut adoption, options)? {
        let why = "spec.versionControl.repository has no host: set --url to the git repository of \
                   the module";
        return Err(why.to_owned());
    }
    let directory = text(spec, "/workingDirectory");
    set_path(&mut adoption, "spec.workingDirectory", directory);
    let branch = text(spec, "/versionControl/branch");
    adoption.set_branch("spec.versionControl.branch", branch);
    set_engine(&mut adoption, spec);
    set_variables(&mut adoption, spec);
    adoption.approve_later(text(spec, "/applyMethod") == Some("auto"));
    let destroys = text(spec, "/deletionPolicy") == Some("destroy");
    let policy = if destroys { "Destroy" } else { "Orphan" };
    adoption.set("deletionPolicy", json!(policy));
    let text = "Lock the workspace in HCP Terraform, so that neither a push nor the API starts a \
                run. Remove the `cloud` block or the backend `remote` from the module on a \
                branch: the folder with the block pulls the state, the resource needs the module \
                without it";
    adoption.steps.push(Step::new(text, []));
    let text = "Pull the state in a folder of the module that is initialized for the workspace, \
                after `terraform login`, and push it";
    adoption.push_state(text, "terraform state pull");
    finish(&mut adoption, workspace);
    Ok(adoption)
}

fn set_engine(adoption: &mut Adoption, spec: &Value) {
    match text(spec, "/terraformVersion") {
        None => {}
        Some(version) if is_version(version) => {
            adoption.set("engine", json!({"name": "terraform", "version": version}));
        }
        Some(_) => {
            let text = "is not a version and is not copied";
            adoption.note(Note::lacks("spec.terraformVersion", text));
        }
    }
}

fn set_variables(adoption: &mut Adoption, spec: &Value) {
    let mut sources = Vec::new();
    for variable in items(spec, "/terraformVariables") {
        let name = text(variable, "/name").unwrap_or_default();
        if !is_identifier(name) {
            let text = "an entry with an invalid name is not copied";
            adoption.note(Note::lacks("spec.terraformVariables[]", text));
            continue;
        }
        let path = format!("spec.terraformVariables {name}");
        if value(variable, "/valueFrom").is_some() {
            match source(name, variable).filter(|_| sources.len() < MAX_SOURCES) {
                Some(source) => sources.push(source),
                None => adoption.note(Note::lacks(path, "the reference is not copied")),
            }
        } else if is_true(variable, "/sensitive") {
            let text = "is sensitive and is not copied: put it into a Secret, and use \
                        variablesFrom[].secretRef";
            adoption.note(Note::lacks(path, text));
        } else {
            set_value(adoption, name, &path, variable);
        }
    }
    if !sources.is_empty() {
        adoption.set("variablesFrom", json!(sources));
    }
}

fn set_value(adoption: &mut Adoption, name: &str, path: &str, variable: &Value) {
    let value = text(variable, "/value").unwrap_or_default();
    let parsed = if is_true(variable, "/hcl") {
        parse_literal(value)
    } else {
        Ok(json!(value))
    };
    match parsed {
        Ok(value) => adoption.set(&format!("variables.{name}"), value),
        Err(why) => adoption.note(Note::lacks(path, format!("is not copied: {why}"))),
    }
}

fn finish(adoption: &mut Adoption, workspace: &Value) {
    adoption.facts.push(
        "the state is in HCP Terraform: `adopt` does not read it, and does not read the API token"
            .to_owned(),
    );
    adoption.stop = Some(Stop {
        patch: json!({"metadata": {"annotations": {"app.terraform.io/paused": "true"}}}),
        effect: "paused",
    });
    let name = text(workspace, "/metadata/name").unwrap_or_default();
    let (namespace, _) = adoption.key();
    let text = "Delete the Workspace object. Deletion is not paused, so set \
                spec.deletionPolicy: retain first: `destroy` destroys the infrastructure, `force` \
                deletes the workspace with its states";
    let commands = [
        format!(
            "kubectl patch {CRD} {name} -n {namespace} --type merge -p '{{\"spec\":{{\"deletionPolicy\":\"retain\"}}}}'"
        ),
        format!("kubectl delete {CRD} {name} -n {namespace}"),
    ];
    adoption.cleanup.push(Step::new(text, commands));
}

#[cfg(test)]
mod tests {
    use super::super::fields::table;
    use super::*;
    use alustan_api::Terraform;

    fn options() -> Options {
        Options {
            url: Some("https://git.test/team/infra".into()),
            ..Options::of_test()
        }
    }

    fn workspace() -> Value {
        json!({"metadata": {"name": "web"}, "spec": {
            "name": "web", "organization": "o", "token": {"secretKeyRef": {"name": "t", "key": "token"}},
            "applyMethod": "auto", "terraformVersion": "1.9.8", "workingDirectory": "web",
            "deletionPolicy": "destroy",
            "terraformVariables": [
                {"name": "region", "value": "eu", "hcl": false},
                {"name": "zones", "value": "[\"a\", 1]", "hcl": true},
                {"name": "call", "value": "file(\"x\")", "hcl": true},
                {"name": "password", "value": "x3-secret", "sensitive": true},
                {"name": "token", "valueFrom": {"secretKeyRef": {"name": "db", "key": "t"}}, "sensitive": true},
            ],
            "environmentVariables": [{"name": "AWS_SECRET_ACCESS_KEY", "value": "x3-secret"}],
            "versionControl": {"repository": "o/infra", "branch": "main"},
        }})
    }

    #[test]
    fn documentation_has_every_field_of_the_crd() {
        table::assert_documented("migration-hcp.md", ROWS);
    }

    #[test]
    fn workspace_is_mapped_without_secrets() {
        let adoption = map(&workspace(), &options()).unwrap();
        let wanted = json!({
            "suspend": true,
            "gitRepo": {"url": "https://git.test/team/infra", "branch": "main", "path": "web"},
            "containerRegistry": {"imageName": "registry.test/web"},
            "backend": {"provider": "managed", "adopt": true},
            "engine": {"name": "terraform", "version": "1.9.8"},
            "approval": {"mode": "Manual"},
            "deletionPolicy": "Destroy",
            "variables": {"region": "eu", "zones": ["a", 1]},
            "variablesFrom": [{"secretRef": {"name": "db", "keys": {"token": "t"}}}],
        });
        let manifest = adoption.manifest();
        assert_eq!(manifest["spec"], wanted);
        let _: Terraform = serde_json::from_value(manifest).unwrap();
        let notes: Vec<&str> = adoption.notes.iter().map(|note| &*note.path).collect();
        for path in [
            "spec.terraformVariables call",
            "spec.terraformVariables password",
            "spec.environmentVariables",
            "spec.versionControl.repository",
        ] {
            assert!(notes.contains(&path), "{path}: {notes:?}");
        }
        assert!(!format!("{adoption:?}").contains("x3-secret"));
    }

    #[test]
    fn repository_needs_a_url() {
        let options = Options {
            url: None,
            ..options()
        };
        let error = map(&workspace(), &options).unwrap_err();
        assert!(error.contains("--url"), "{error}");
    }
}
