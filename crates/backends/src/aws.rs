//! State in an S3 bucket of AWS or of an S3-compatible service (<https://developer.hashicorp.com/terraform/language/backend/s3>).

use alustan_api::BackendSpec;
use alustan_api::run::Bootstrap;
use serde_json::{Value, json};

use crate::backend::{Backend, Config, Environment, Invalid, Owner, Since, text};

pub(crate) struct Aws;

/// Arguments that are set to true for a custom endpoint. They select path-style URLs, and skip checks and checksums that only AWS supports.
const ONLY_AWS: &[&str] = &[
    "use_path_style",
    "skip_credentials_validation",
    "skip_metadata_api_check",
    "skip_region_validation",
    "skip_requesting_account_id",
    "skip_s3_checksum",
];

/// Prefixes of arguments that select credentials other than those in the environment variables.
const OF_ANOTHER: &[&str] = &["assume_role", "profile", "shared_"];

/// Environment variables that set the endpoint if the backend block does not set it, in order of precedence.
const ENDPOINTS: &[&str] = &["AWS_ENDPOINT_URL_S3", "AWS_S3_ENDPOINT", "AWS_ENDPOINT_URL"];

impl Backend for Aws {
    fn name(&self) -> &'static str {
        "aws"
    }

    fn kind<'a>(&self, _: &'a BackendSpec) -> &'a str {
        "s3"
    }

    fn fields(&self) -> &'static [(&'static str, &'static str)] {
        &[
            ("bucket", "s3"),
            ("dynamodb_table", "dynamoDB"),
            ("use_lockfile", "lockFile"),
            ("region", "region"),
            ("key", "key"),
            ("endpoints", "endpoint"),
            ("endpoint", "endpoint"),
        ]
    }

    fn validate(&self, spec: &BackendSpec, _: Owner<'_>) -> Result<(), Invalid> {
        if spec.dynamo_db.is_none() && spec.lock_file == Some(false) {
            let why = "must not be false without dynamoDB: concurrent runs would corrupt the state";
            return Err(Invalid::new("lockFile", why));
        }
        let mut others = spec.config.keys().filter(|_| spec.bootstrap);
        match others.find(|name| OF_ANOTHER.iter().any(|start| name.starts_with(start))) {
            Some(name) => Err(Invalid::new(
                format!("config.{name}"),
                "cannot be combined with bootstrap: this argument selects other credentials than \
                 those of the run, with which bootstrap creates the bucket. Create the bucket \
                 yourself and unset bootstrap, or unset this argument",
            )),
            None => Ok(()),
        }
    }

    fn config(&self, spec: &BackendSpec, owner: Owner<'_>) -> Config {
        let mut config = Config::from([
            ("bucket".to_owned(), json!(spec.s3)),
            ("region".to_owned(), json!(spec.region)),
            ("key".to_owned(), json!(owner.key(spec))),
            ("encrypt".to_owned(), json!(true)),
        ]);
        let mut set = |name: &str, value: Value| config.insert(name.to_owned(), value);
        if let Some(table) = &spec.dynamo_db {
            set("dynamodb_table", json!(table));
        }
        if spec.lock_file.unwrap_or_else(|| spec.dynamo_db.is_none()) {
            set("use_lockfile", json!(true));
        }
        if let Some(endpoint) = &spec.endpoint {
            set("endpoints", json!({ "s3": endpoint }));
            for name in ONLY_AWS {
                set(name, json!(true));
            }
        }
        config
    }

    fn since(&self, config: &Config) -> Option<Since> {
        if config.get("use_lockfile") == Some(&json!(true)) {
            return Some(Since {
                version: "1.10.0",
                why: "the lock file in the bucket. For an earlier version of the engine, set \
                      spec.backend.dynamoDB and unset spec.backend.lockFile",
            });
        }
        config.contains_key("endpoints").then_some(Since {
            version: "1.6.0",
            why: "spec.backend.endpoint",
        })
    }

    fn location(&self, config: &Config, environment: &Environment) -> Option<String> {
        let location = format!("{}/{}", text(config, "bucket")?, text(config, "key")?);
        let own = config
            .get("endpoints")
            .and_then(|endpoints| endpoints.get("s3"))
            .and_then(Value::as_str)
            .or_else(|| text(config, "endpoint"));
        let mut variables = ENDPOINTS.iter().filter_map(|name| environment.get(*name));
        let host = own
            .or_else(|| variables.next().map(String::as_str))
            .and_then(crate::http::host);
        Some(match host {
            Some(host) => format!("{host}/{location}"),
            None => location,
        })
    }

    /// Returns the location of the object that the engine writes, so that a resource whose `key` names this object is a conflict.
    fn location_in(&self, workspace: &str, location: &str, config: &Config) -> String {
        let key = text(config, "key").unwrap_or_default();
        let prefix = text(config, "workspace_key_prefix").unwrap_or("env:");
        let bucket = location.strip_suffix(key).unwrap_or(location);
        let key = normalized(&format!("{prefix}/{workspace}/{key}"));
        format!("{bucket}{key}")
    }

    fn location_field(&self) -> &'static str {
        "key"
    }

    fn bootstrap(&self, spec: &BackendSpec) -> Option<Bootstrap> {
        spec.bootstrap.then(|| Bootstrap {
            bucket: spec.s3.clone().unwrap_or_default(),
            region: spec.region.clone().unwrap_or_default(),
            table: spec.dynamo_db.clone(),
            endpoint: spec.endpoint.clone(),
        })
    }
}

/// Returns `key` without empty, `.` and `..` segments. The engine does the same with keys of workspaces (`path.Join` of Go), but not with the
/// key of the workspace `default`.
fn normalized(key: &str) -> String {
    let mut segments: Vec<&str> = Vec::new();
    for segment in key
        .split('/')
        .filter(|segment| !matches!(*segment, "" | "."))
    {
        let has_parent = segments.last().is_some_and(|last| *last != "..");
        if segment == ".." && has_parent {
            segments.pop();
        } else {
            segments.push(segment);
        }
    }
    segments.join("/")
}
