//! Generated files of the Helm chart: copies of files shared with kustomize, the schema of `values.yaml`, and the
//! table of values in the chart's README.

use std::path::{Path, PathBuf};

use alustan_api::EngineName;
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value, json};

/// Folder of the chart.
const CHART: &str = "deploy/helm/alustan";

/// Files that the chart shares with kustomize: path in the repository, and file name in the chart.
const SHARED: [(&str, &str); 9] = [
    ("deploy/crd/terraforms.alustan.io.yaml", "crd.yaml"),
    ("deploy/crd/terraformruns.alustan.io.yaml", "crd-runs.yaml"),
    ("deploy/kustomize/base/policies.yaml", "policies.yaml"),
    ("deploy/kustomize/base/rbac.yaml", "rbac.yaml"),
    (
        "deploy/kustomize/components/allow-lists/policy.yaml",
        "allowed.yaml",
    ),
    ("deploy/kustomize/builds/rbac.yaml", "builds-rbac.yaml"),
    (
        "deploy/metacontroller/component/rbac.yaml",
        "metacontroller-rbac.yaml",
    ),
    (
        "deploy/monitoring/prometheusrule.yaml",
        "prometheusrule.yaml",
    ),
    ("deploy/monitoring/dashboard.json", "dashboard.json"),
];

/// Returns the generated files of the chart. Files in `fresh`, which other generators created, take precedence over the
/// files in the repository `root`.
pub(crate) fn generated(
    root: &Path,
    fresh: &[(PathBuf, String)],
) -> Result<Vec<(PathBuf, String)>> {
    let read = |path: &str| match fresh.iter().find(|(known, _)| known == Path::new(path)) {
        Some((_, text)) => Ok(text.clone()),
        None => std::fs::read_to_string(root.join(path)).with_context(|| format!("read {path}")),
    };
    let mut files = Vec::new();
    for (path, name) in SHARED {
        files.push((format!("{CHART}/files/{name}").into(), read(path)?));
    }
    let keys = keys(&read(&format!("{CHART}/values.yaml"))?)?;
    let schema = serde_json::to_string_pretty(&schema(&keys)?)?;
    files.push((
        format!("{CHART}/values.schema.json").into(),
        format!("{schema}\n"),
    ));
    let readme = format!("{CHART}/README.md");
    let text = read(&readme)?;
    let (by_hand, _) = text
        .split_once(TABLE)
        .with_context(|| format!("{readme} has no {TABLE:?}"))?;
    files.push((readme.into(), format!("{by_hand}{TABLE}{}", table(&keys))));
    Ok(files)
}

/// Header of the table of values in the chart's README.
const TABLE: &str = "| value | default | |\n|---|---|---|\n";

/// A key of `values.yaml`.
#[derive(Debug, PartialEq)]
struct Key {
    /// Names of the parent keys, outermost first, and of the key.
    path: Vec<String>,
    /// Text of the comment above the key.
    description: String,
    /// Default value; `None` for an object with nested keys.
    default: Option<Value>,
}

/// Parses the keys of `values.yaml`. Each key is on one line with its value, below a comment.
fn keys(text: &str) -> Result<Vec<Key>> {
    let mut path: Vec<String> = Vec::new();
    let mut comment: Vec<&str> = Vec::new();
    let mut keys = Vec::new();
    for line in text.lines() {
        let words = line.trim();
        if let Some(words) = words.strip_prefix('#') {
            comment.push(words.trim());
            continue;
        }
        let description = std::mem::take(&mut comment).join(" ");
        if words.is_empty() {
            continue;
        }
        let (name, value) = words
            .split_once(':')
            .with_context(|| format!("values.yaml: line {line:?} contains no key"))?;
        path.truncate((line.len() - line.trim_start().len()) / 2);
        path.push(name.to_owned());
        let default = match value.trim() {
            "" => None,
            value => Some(serde_saphyr::from_str(value).with_context(|| line.to_owned())?),
        };
        ensure!(
            default.is_none() || !description.is_empty(),
            "values.yaml: key {} has no comment",
            path.join(".")
        );
        keys.push(Key {
            path: path.clone(),
            description,
            default,
        });
    }
    Ok(keys)
}

/// Returns the constraints that [`schema`] adds to the type of the default value, by key.
fn constraints() -> Vec<(&'static str, Value)> {
    let name = json!({"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"});
    let names = json!({"items": name, "uniqueItems": true});
    let objects = json!({"items": {"type": "object"}});
    let strings = json!({"additionalProperties": {"type": "string"}});
    let mut constraints = vec![
        ("image.repository", json!({"minLength": 1})),
        (
            "image.digest",
            json!({"pattern": "^(sha256:[0-9a-f]{64})?$"}),
        ),
        (
            "image.pullPolicy",
            json!({"enum": ["", "Always", "IfNotPresent", "Never"]}),
        ),
        (
            "imagePullSecrets",
            json!({"items": {"type": "object", "required": ["name"]}}),
        ),
        ("baseImage", json!({"minLength": 1})),
        (
            "engines",
            json!({"items": {"type": "string", "pattern": engine_pattern()}}),
        ),
        (
            "builder.kind",
            json!({"enum": ["", "kaniko", "append", "Kaniko", "Append"]}),
        ),
        (
            "builder.arguments",
            json!({"items": {"type": "string", "pattern": "^[^,]+$"}}),
        ),
        (
            "builder.capabilities",
            json!({"items": {"type": "string", "pattern": "^[A-Z_]+$"}}),
        ),
        (
            "registries.insecure",
            json!({"items": {"type": "string", "pattern": "^[^/,]+$"}}),
        ),
        (
            "registries.identity",
            json!({"items": {"type": "string", "pattern": "^[^,]+$"}}),
        ),
        ("architecture", json!({"enum": ["", "amd64", "arm64"]})),
        ("podUser", pod_user()),
        ("certificateAuthorities.key", json!({"minLength": 1})),
        ("watchNamespaces", names.clone()),
        ("maxConcurrentRuns", json!({"minimum": 1})),
        ("maxRunsPerNamespace", json!({"minimum": 0})),
        ("keepJobs", json!({"minimum": 0})),
        ("gitConcurrency", json!({"minimum": 0, "maximum": 64})),
        ("gitCache.mib", json!({"minimum": 64})),
        (
            "gitCache.volume",
            json!({"pattern": "^[0-9]+(\\.[0-9]+)?[KMGT]i?$"}),
        ),
        ("log.level", json!({"minLength": 1})),
        ("log.format", json!({"enum": ["text", "json"]})),
        ("log.levelConfigMap", json!({"minLength": 1})),
        ("hooks.secretName", json!({"minLength": 1})),
        ("notifications.secretName", json!({"minLength": 1})),
        ("replicas", json!({"minimum": 0})),
        ("resources", resources()),
        (
            "extraEnv",
            json!({"items": {"type": "object", "required": ["name"]}}),
        ),
        ("podLabels", strings.clone()),
        ("podAnnotations", strings.clone()),
        ("nodeSelector", strings.clone()),
        ("tolerations", objects.clone()),
        ("topologySpreadConstraints", objects.clone()),
        ("serviceAccount.annotations", strings.clone()),
        ("service.annotations", strings.clone()),
        ("allowed", allowed()),
        ("podDefaults", pod_defaults()),
        ("terraformCliConfig", json!({"maxLength": 16_384})),
        ("networkPolicy.from", objects),
        (
            "networkPolicy.blocked",
            json!({"items": {"type": "string", "pattern": "^[0-9a-f:.]+/[0-9]+$"}}),
        ),
        ("networkPolicy.namespaces", names),
        ("monitoring.podMonitor.labels", strings.clone()),
        ("monitoring.prometheusRule.labels", strings.clone()),
        ("monitoring.dashboard.labels", strings),
    ];
    constraints.extend(page_constraints());
    constraints
}

/// Returns the constraints of `page`.
fn page_constraints() -> Vec<(&'static str, Value)> {
    // Names that the page may impersonate.
    let subjects = json!({
        "items": {"type": "string", "pattern": "^[^,]+$", "not": {"pattern": "^system:"}},
        "uniqueItems": true,
    });
    let header = json!({"pattern": "^[A-Za-z0-9-]+$"});
    vec![
        ("page.replicas", json!({"minimum": 0})),
        ("page.signIn", json!({"enum": ["token", "proxy"]})),
        ("page.url", json!({"pattern": "^https?://[^/?#@]+/?$"})),
        ("page.cookieKeySecret", json!({"minLength": 1})),
        ("page.proxy.users", subjects.clone()),
        ("page.proxy.groups", subjects),
        ("page.proxy.userHeader", header.clone()),
        ("page.proxy.groupHeader", header),
        ("page.resources", resources()),
        (
            "page.service.annotations",
            json!({"additionalProperties": {"type": "string"}}),
        ),
        (
            "page.networkPolicy.from",
            json!({"items": {"type": "object"}}),
        ),
        (
            "page.networkPolicy.apiServerPorts",
            json!({"items": {"type": "integer", "minimum": 1, "maximum": 65_535}}),
        ),
    ]
}

/// Returns the constraints of the resources of a container.
fn resources() -> Value {
    json!({
        "properties": {"requests": {"type": "object"}, "limits": {"type": "object"}, "claims": {"type": "array"}},
        "additionalProperties": false,
    })
}

/// Returns the constraints of `allowed`.
fn allowed() -> Value {
    let lines = json!({"type": "array", "items": {"type": "string", "minLength": 1}});
    let manual = json!({"enum": ["Manual"]});
    json!({
        "properties": {
            "registries": lines, "repositories": lines, "builders": lines, "serviceAccounts": lines,
            "approval": manual, "destroy": manual,
        },
        "additionalProperties": false,
    })
}

/// Returns a regular expression for an entry of the engine catalogue. Example of an entry: `terraform:1.12.6=registry.example.com/base:1`.
fn engine_pattern() -> String {
    let engines: Vec<_> = EngineName::VARIANTS
        .iter()
        .map(|engine| engine.as_str())
        .collect();
    let engines = engines.join("|");
    format!(r"^({engines}):[0-9]+\.[0-9]+\.[0-9]+[^=]*=[^,]+$")
}

/// Returns the constraint of `podUser`. `--set podUser=1000` sets an integer.
fn pod_user() -> Value {
    json!({
        "type": ["string", "integer"], "pattern": "^(none|[1-9][0-9]{0,9})$",
        "minimum": 1, "maximum": i32::MAX,
    })
}

/// Returns the constraint of `podDefaults`. The operator checks the content of the four keys.
fn pod_defaults() -> Value {
    json!({
        "properties": {
            "runs": {"type": "object"}, "builds": {"type": "object"},
            "allowed": {"type": "object"}, "maximum": {"type": "object"},
        },
        "additionalProperties": false,
    })
}

/// Builds the schema of `values.yaml`. The schema refuses unknown keys.
fn schema(keys: &[Key]) -> Result<Value> {
    let mut constraints = constraints();
    let mut root = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        // Helm passes `global` to every chart.
        "properties": {"global": {"type": "object"}},
        "additionalProperties": false,
    });
    for key in keys {
        let path = key.path.join(".");
        let constraint = constraints
            .iter()
            .position(|(name, _)| *name == path)
            .map(|at| constraints.swap_remove(at).1);
        let property = match &key.default {
            None => object(),
            Some(default) => property(key, default, constraint)?,
        };
        *schema_at(&mut root, &key.path)? = property;
    }
    ensure!(
        constraints.is_empty(),
        "values.yaml does not contain the keys of these constraints: {constraints:?}"
    );
    Ok(root)
}

fn object() -> Value {
    json!({"type": "object", "properties": {}, "additionalProperties": false})
}

fn property(key: &Key, default: &Value, constraint: Option<Value>) -> Result<Value> {
    let kind = match default {
        Value::String(_) => json!({"type": "string"}),
        Value::Bool(_) => json!({"type": "boolean"}),
        Value::Number(_) => json!({"type": "integer"}),
        Value::Array(_) => json!({"type": "array", "items": {"type": "string"}}),
        Value::Object(_) => json!({"type": "object"}),
        Value::Null => bail!(
            "values.yaml: the default value of key {} is null, so the key has no type; set another default value",
            key.path.join(".")
        ),
    };
    let mut all = Map::new();
    all.insert("description".to_owned(), key.description.clone().into());
    all.insert("default".to_owned(), default.clone());
    for part in [Some(kind), constraint].into_iter().flatten() {
        if let Value::Object(part) = part {
            all.extend(part);
        }
    }
    Ok(Value::Object(all))
}

/// Returns the schema of the key at `path`. If the key has no schema, adds an empty (null) schema to the parent.
fn schema_at<'a>(root: &'a mut Value, path: &[String]) -> Result<&'a mut Value> {
    let mut schema = root;
    for name in path {
        let properties = schema
            .get_mut("properties")
            .and_then(Value::as_object_mut)
            .with_context(|| format!("values.yaml: {path:?}"))?;
        schema = properties.entry(name.clone()).or_insert(Value::Null);
    }
    Ok(schema)
}

/// Formats the keys with a default value as table rows.
fn table(keys: &[Key]) -> String {
    let cell = |text: &str| text.replace('|', "\\|");
    let mut rows = String::new();
    for key in keys {
        if let Some(default) = &key.default {
            let default = cell(&default.to_string());
            let row = format!(
                "| `{}` | `{default}` | {} |\n",
                key.path.join("."),
                cell(&key.description)
            );
            rows.push_str(&row);
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn read(path: &str) -> String {
        let file = crate::root().join(path);
        std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    #[test]
    fn keys_have_a_path_a_description_and_a_default() {
        let text = "# Said of the file.\n\na:\n  # One\n  # and more.\n  b: [x]\n  c:\n    # Two.\n    d: true\n# Three.\ne: \"\"\n";
        let key = |path: &[&str], description: &str, default| Key {
            path: path.iter().map(|part| (*part).to_owned()).collect(),
            description: description.to_owned(),
            default,
        };
        let wanted = [
            key(&["a"], "", None),
            key(&["a", "b"], "One and more.", Some(json!(["x"]))),
            key(&["a", "c"], "", None),
            key(&["a", "c", "d"], "Two.", Some(json!(true))),
            key(&["e"], "Three.", Some(json!(""))),
        ];
        assert_eq!(keys(text).unwrap(), wanted);
        let unexplained = keys("a: 1\n").unwrap_err();
        assert!(
            unexplained.to_string().contains("key a has no comment"),
            "{unexplained}"
        );
    }

    #[test]
    fn schema_allows_only_known_keys_and_values() {
        let keys = keys(&read(&format!("{CHART}/values.yaml"))).unwrap();
        let schema = schema(&keys).unwrap();
        assert_eq!(schema["additionalProperties"], false);
        let log = &schema["properties"]["log"];
        assert_eq!(log["additionalProperties"], false);
        let format = &log["properties"]["format"];
        assert_eq!(format["enum"], json!(["text", "json"]));
    }

    /// Returns the words of `text` that begin with `ALUSTAN_`.
    fn variables(text: &str) -> BTreeSet<&str> {
        text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .filter(|word| word.starts_with("ALUSTAN_"))
            .collect()
    }

    /// Environment variables of flags that the chart does not set, because its manifests use the default mount path and the default port.
    const SETTLED: [&str; 2] = ["ALUSTAN_CACHE_DIR", "ALUSTAN_LISTEN"];

    #[test]
    fn chart_sets_every_flag_of_the_operator() {
        let flags = read("crates/controller/src/args.rs") + &read(crate::LOG_FLAGS);
        let flags: BTreeSet<&str> = flags
            .split("env = \"")
            .skip(1)
            .filter_map(|rest| rest.split('"').next())
            .filter(|name| !SETTLED.contains(name))
            .collect();
        assert!(flags.len() > 20, "{flags:?}");
        let deployment = read(&format!("{CHART}/templates/deployment.yaml"));
        assert_eq!(variables(&deployment), flags);
    }

    #[test]
    fn chart_sets_every_flag_of_the_page() {
        let flags = read("crates/controller/src/page/arguments.rs") + &read(crate::LOG_FLAGS);
        let flags: BTreeSet<&str> = variables(&flags)
            .into_iter()
            .filter(|name| *name != "ALUSTAN_PAGE_LISTEN")
            .collect();
        assert!(flags.len() > 10, "{flags:?}");
        let page = read(&format!("{CHART}/templates/page.yaml"));
        assert_eq!(variables(&page), flags);
    }

    #[test]
    fn chart_and_overlays_name_the_version_of_the_operator() {
        let version = env!("CARGO_PKG_VERSION");
        let chart = read(&format!("{CHART}/Chart.yaml"));
        for key in ["version", "appVersion"] {
            assert!(chart.contains(&format!("\n{key}: {version}\n")), "{key}");
        }
        for file in ["base", "overlays/staging"] {
            let file = format!("deploy/kustomize/{file}/kustomization.yaml");
            let tag = format!("newTag: {version}\n");
            assert!(read(&file).contains(&tag), "{file}");
        }
        for (file, image) in [
            ("deploy/kustomize/base/deployment.yaml", "controller"),
            ("deploy/kustomize/base/deployment.yaml", "terraform"),
            (
                "deploy/kustomize/overlays/staging/controller.yaml",
                "terraform",
            ),
            ("deploy/helm/alustan/values.yaml", "terraform"),
            ("deploy/helm/values/staging.yaml", "terraform"),
            ("images/cloud-helpers/Dockerfile", "controller"),
            ("docs/install.md", "terraform"),
        ] {
            let named = read(file).contains(&format!("/{image}:{version}"));
            assert!(named, "{file}: {image}");
        }
    }
}
