//! State in a `PostgreSQL` database
//! (<https://developer.hashicorp.com/terraform/language/backend/pg>).

use alustan_api::BackendSpec;
use serde_json::json;

use crate::{Backend, Config, Environment, Invalid, Owner, text};

pub(crate) struct Pg;

/// What a name in `PostgreSQL` has room for, in bytes.
const LONGEST: usize = 63;

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
        if name.len() > LONGEST {
            let why = format!("{name} is longer than the {LONGEST} bytes that PostgreSQL takes");
            return Err(Invalid::new("schemaName", why));
        }
        Ok(())
    }

    fn config(&self, spec: &BackendSpec, owner: Owner<'_>) -> Config {
        Config::from([("schema_name".to_owned(), json!(schema(spec, owner)))])
    }

    /// With the database, as far as its URL tells of it; its user and password are left out.
    fn place(&self, config: &Config, environment: &Environment) -> Option<String> {
        let schema = text(config, "schema_name").unwrap_or("terraform_remote_state");
        let own = text(config, "conn_str");
        let url = own.or_else(|| environment.get("PG_CONN_STR").map(String::as_str))?;
        let (kind, _) = url.split_once("://")?;
        let database = crate::http::path(url)?;
        let is_url = matches!(kind, "postgres" | "postgresql");
        is_url.then(|| format!("{database}/{schema}"))
    }

    fn place_field(&self) -> &'static str {
        "schemaName"
    }
}

fn schema(spec: &BackendSpec, owner: Owner<'_>) -> String {
    let own = spec.schema_name.clone();
    own.unwrap_or_else(|| format!("{}_{}", owner.namespace, owner.name))
}
