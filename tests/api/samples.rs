//! The API server accepts the sample resources in `tests/api/samples`, keeps all of their fields, and accepts the resources in
//! `deploy/examples`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use alustan_api::Terraform;
use serde_json::{Value, json};

use crate::server::Server;
use crate::space::Space;

pub(crate) const INLINE: &str = include_str!("samples/inline.yaml");
pub(crate) const CONFIG_MAP: &str = include_str!("samples/configmap.yaml");

/// Returns the YAML files in a folder and its subfolders.
pub(crate) fn files(folder: &Path) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            paths.extend(files(&path));
        } else if path
            .extension()
            .is_some_and(|extension| extension == "yaml")
        {
            paths.push(path);
        }
    }
    paths
}

fn terraform(text: &str) -> Value {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).unwrap();
    documents
        .into_iter()
        .find(|document| document["kind"] == "Terraform")
        .unwrap()
}

/// Returns the `Terraform` resources in `document`: the document itself, and templates of kro and Crossplane. Expressions of kro are
/// replaced by a name, and a resource without a name gets one.
pub(crate) fn terraforms(document: &Value) -> Vec<Value> {
    match document {
        Value::Object(fields) if document["kind"] == "Terraform" => {
            let mut object = Value::Object(fields.clone());
            replace_expressions(&mut object);
            if object["metadata"]["name"].is_null() {
                object["metadata"] = json!({"name": "composed"});
            }
            vec![object]
        }
        Value::Object(fields) => fields.values().flat_map(terraforms).collect(),
        Value::Array(values) => values.iter().flat_map(terraforms).collect(),
        _ => Vec::new(),
    }
}

fn replace_expressions(value: &mut Value) {
    match value {
        Value::String(text) if text.starts_with("${") => "expression".clone_into(text),
        Value::Array(values) => values.iter_mut().for_each(replace_expressions),
        Value::Object(fields) => fields.values_mut().for_each(replace_expressions),
        _ => {}
    }
}

#[tokio::test]
async fn kubectl_applies_the_samples_unchanged() {
    let server = Server::shared().await;
    for (name, text) in [("inline", INLINE), ("configmap", CONFIG_MAP)] {
        let file = server.folder().join(format!("sample-{name}.yaml"));
        std::fs::write(&file, text).unwrap();
        let file = file.to_str().unwrap();
        for how in ["--server-side=true", "--server-side=false"] {
            let arguments = [
                "apply",
                "--dry-run=server",
                "--validate=strict",
                how,
                "-f",
                file,
            ];
            let output = server.kubectl(&arguments).unwrap();
            let made = "terraform.alustan.io/example-terraformconfig";
            assert!(output.contains(made), "{name} {how}: {output}");
        }
    }
}

#[tokio::test]
async fn every_field_of_the_samples_is_kept_and_parsed() {
    let space = Space::new().await;
    for text in [INLINE, CONFIG_MAP] {
        let mut sample = terraform(text);
        sample["metadata"]
            .as_object_mut()
            .unwrap()
            .remove("namespace");
        let stored = space.apply(&sample).await.unwrap();
        for part in ["variables", "scripts"] {
            assert_eq!(stored["spec"][part], sample["spec"][part]);
        }
        for part in ["backend", "gitRepo", "containerRegistry"] {
            for (field, value) in sample["spec"][part].as_object().unwrap() {
                assert_eq!(&stored["spec"][part][field], value, "{part}.{field}");
            }
        }
        let read: Terraform = serde_json::from_value(stored).unwrap();
        let backend = read.spec.backend.unwrap();
        assert_eq!(backend.s3.as_deref(), Some("s3-store"));
        assert_eq!(backend.dynamo_db.as_deref(), Some("db-table"));
        assert_eq!(
            serde_json::to_value(&read.spec.variables).unwrap(),
            json!({"var1": "value1", "var2": "value2"})
        );
        let destroy = read.spec.scripts.unwrap().destroy.unwrap();
        assert!(destroy.inline.is_some() != destroy.config_map_ref.is_some());
        space
            .raw()
            .delete(
                "example-terraformconfig",
                &kube::api::DeleteParams::default(),
            )
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn every_resource_of_the_examples_is_accepted() {
    let space = Space::new().await;
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/examples");
    let mut folders = BTreeSet::new();
    for file in files(&examples) {
        let text = std::fs::read_to_string(&file).unwrap();
        let documents: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
        for mut document in documents.iter().flat_map(terraforms) {
            let metadata = document["metadata"].as_object_mut().unwrap();
            metadata.remove("namespace");
            let result = space.try_apply(&document).await;
            assert!(result.is_ok(), "{}: {result:?}", file.display());
            let folder = file.strip_prefix(&examples).unwrap().parent().unwrap();
            folders.insert(folder.to_owned());
        }
    }
    for example in std::fs::read_dir(&examples).unwrap() {
        let example = example.unwrap();
        if !example.file_type().unwrap().is_dir() {
            continue;
        }
        let name = example.file_name();
        let exists = folders.iter().any(|folder| folder.starts_with(&name));
        assert!(exists, "{} has no resource", name.display());
    }
}
