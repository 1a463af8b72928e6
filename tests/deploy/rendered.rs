//! Runs helm and kustomize and parses the manifests that they render.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

/// Path of the chart, relative to the root of the repository.
pub(crate) const CHART: &str = "deploy/helm/alustan";

/// Returns the root of the repository.
pub(crate) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Runs `program` in the root of the repository. Returns its standard output.
///
/// # Errors
/// Standard output and standard error of `program` if it fails.
pub(crate) fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new(program);
    let output = command.args(arguments).current_dir(root()).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}; run `make chart`"));
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let stdout = text(output.stdout);
    if output.status.success() {
        Ok(stdout)
    } else {
        Err(stdout + &text(output.stderr))
    }
}

/// Writes `text` to a temporary file, which is deleted when the returned handle is dropped.
pub(crate) fn file(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

/// Renders the chart for a release in a namespace, with `values`.
///
/// # Errors
/// Output of helm if it refuses the values.
pub(crate) fn helm(release: &str, namespace: &str, values: &str) -> Result<String, String> {
    let values = file(values);
    let values = values.path().to_str().unwrap();
    let arguments = ["template", release, CHART, "-n", namespace, "-f", values];
    run("helm", &arguments)
}

/// Renders the chart with the documented names of release and namespace.
pub(crate) fn usual(values: &str) -> String {
    helm("alustan", "alustan-system", values)
        .unwrap_or_else(|message| panic!("{values}: {message}"))
}

/// Renders the kustomization in `folder`.
pub(crate) fn kustomize(folder: &str) -> String {
    run("kubectl", &["kustomize", folder]).unwrap_or_else(|message| panic!("{folder}: {message}"))
}

/// Identity of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Id {
    pub(crate) api_version: String,
    pub(crate) kind: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
    }
}

/// Parses the objects in `text`. Panics if an object occurs twice.
pub(crate) fn objects(text: &str) -> BTreeMap<Id, Value> {
    let mut objects = BTreeMap::new();
    for document in text.split("\n---\n") {
        let object: Option<Value> =
            serde_saphyr::from_str(document).unwrap_or_else(|error| panic!("{error}: {document}"));
        let Some(object) = object.filter(Value::is_object) else {
            continue;
        };
        let word = |pointer: &str| {
            let word = object.pointer(pointer).and_then(Value::as_str);
            word.unwrap_or_default().to_owned()
        };
        let id = Id {
            api_version: word("/apiVersion"),
            kind: word("/kind"),
            namespace: word("/metadata/namespace"),
            name: word("/metadata/name"),
        };
        assert!(!objects.contains_key(&id), "{id} is there twice");
        objects.insert(id, object);
    }
    objects
}
