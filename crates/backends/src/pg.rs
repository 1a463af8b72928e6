//! State in a `PostgreSQL` database
//! (<https://developer.hashicorp.com/terraform/language/backend/pg>).

use alustan_api::BackendSpec;
use serde_json::json;

use crate::backend::{Backend, Config, Environment, Invalid, Owner, text};

pub(crate) struct Pg;

/// Maximum length of an identifier in `PostgreSQL`, in bytes.
const MAX_IDENTIFIER_BYTES: usize = 63;

impl Backend for Pg {
    fn name(&self) -> &'static str {
        "pg"
    }

    fn kind<'a>(&self, _: &'a BackendSpec) -> &'a str {
        "pg"
    }

    fn fields(&self) -> &'static [(&'static str, &'static str)] {
        &[("schema_name", "schemaName")]
    }

    fn validate(&self, spec: &BackendSpec, owner: Owner<'_>) -> Result<(), Invalid> {
        let name = schema(spec, owner);
        if name.len() > MAX_IDENTIFIER_BYTES {
            let why = format!(
                "{name} is longer than {MAX_IDENTIFIER_BYTES} bytes, the limit of PostgreSQL: set a shorter name"
            );
            return Err(Invalid::new("schemaName", why));
        }
        Ok(())
    }

    fn config(&self, spec: &BackendSpec, owner: Owner<'_>) -> Config {
        Config::from([("schema_name".to_owned(), json!(schema(spec, owner)))])
    }

    /// Returns server, database and schema, without user and password. `None` if neither the connection string nor the environment sets the
    /// host, or if the connection string is a URL with a scheme other than `postgres` and `postgresql`.
    fn location(&self, config: &Config, environment: &Environment) -> Option<String> {
        let schema = text(config, "schema_name").unwrap_or("terraform_remote_state");
        let own = text(config, "conn_str");
        let url = own.or_else(|| environment.get("PG_CONN_STR").map(String::as_str));
        let database = match url.map(|url| (url, url.split_once("://"))) {
            Some((url, Some(("postgres" | "postgresql", _)))) => crate::http::path(url)?,
            Some((_, Some(_))) => return None,
            Some((pairs, None)) => server(|name, variable| {
                setting(pairs, name)
                    .map(str::to_owned)
                    .or_else(|| environment.get(variable).cloned())
            })?,
            None => server(|_, variable| environment.get(variable).cloned())?,
        };
        Some(format!("{database}/{schema}"))
    }

    fn location_field(&self) -> &'static str {
        "schemaName"
    }
}

/// Returns `HOST:PORT/DATABASE` from the libpq parameters; `None` without a host. `value` returns the value of a parameter, given its
/// keyword and its environment variable.
fn server(value: impl Fn(&str, &str) -> Option<String>) -> Option<String> {
    let host = value("host", "PGHOST")?;
    let port = value("port", "PGPORT").map(|port| format!(":{port}"));
    let database = value("dbname", "PGDATABASE").unwrap_or_default();
    Some(format!("{host}{}/{database}", port.unwrap_or_default()))
}

/// Returns the value of `name` in a connection string of `name=value` pairs.
fn setting<'a>(pairs: &'a str, name: &str) -> Option<&'a str> {
    pairs
        .split_ascii_whitespace()
        .find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
        .map(|value| value.trim_matches('\''))
}

fn schema(spec: &BackendSpec, owner: Owner<'_>) -> String {
    spec.schema_name
        .clone()
        .unwrap_or_else(|| format!("{}_{}", owner.namespace, owner.name))
}
