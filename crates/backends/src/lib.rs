//! Where Terraform state lives. A backend is one file and one line in [`of`]; this crate is pure:
//! it says what the engine is told, the runner tells it.

mod aws;
mod managed;
mod place;

pub use aws::default_key;
pub use place::{Move, place, step};
use std::collections::BTreeMap;

use alustan_api::run::{BackendInputs, ManagedState};
use alustan_api::{BackendProvider, BackendSpec};
use serde_json::Value;
use thiserror::Error;

/// The resource that a state belongs to.
#[derive(Clone, Copy, Debug)]
pub struct Owner<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
}

/// One kind of backend.
trait Backend: Sync {
    /// The type of the engine's `backend` block.
    fn kind(&self) -> &'static str;

    /// The partial configuration that goes with the block; nothing secret.
    fn config(&self, spec: &BackendSpec, owner: Owner<'_>) -> BTreeMap<String, Value>;

    /// Whether the state is kept in Secrets by the runner's own server.
    fn managed(&self) -> bool {
        false
    }
}

fn of(provider: BackendProvider) -> &'static dyn Backend {
    match provider {
        BackendProvider::Managed => &managed::Managed,
        BackendProvider::Aws => &aws::Aws,
    }
}

/// The module has a backend of one type, the resource asks for another (rule 11).
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "spec.backend.provider: the module has a `backend \"{module}\"` block, but provider {provider} \
     is a `{wanted}` backend; remove one of them"
)]
pub struct Conflict {
    /// The type of the module's block.
    pub module: String,
    /// What the resource asks for.
    pub provider: &'static str,
    /// The type that goes with it.
    pub wanted: &'static str,
}

/// The type of the backend that a run will use: of the resource, of the module, or managed.
/// `module` is the type of the module's own block.
pub fn kind(spec: Option<&BackendSpec>, module: Option<&str>) -> BackendProviderOrOwn {
    match (spec.and_then(|spec| spec.provider), module) {
        (Some(provider), _) => BackendProviderOrOwn::Provider(provider),
        (None, None) => BackendProviderOrOwn::Provider(BackendProvider::Managed),
        (None, Some(_)) => BackendProviderOrOwn::Own,
    }
}

/// Who decides about the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendProviderOrOwn {
    /// The resource or the default.
    Provider(BackendProvider),
    /// The module's own block.
    Own,
}

/// Whether the state is kept in Secrets of the resource's namespace.
pub fn is_managed(spec: Option<&BackendSpec>, module: Option<&str>) -> bool {
    match kind(spec, module) {
        BackendProviderOrOwn::Provider(provider) => of(provider).managed(),
        BackendProviderOrOwn::Own => false,
    }
}

/// What the runner is told about the backend. `module` is the type of the module's own block,
/// `environment` the data of `spec.backend.secretRef`, `secrets` the Secrets of a managed state.
pub fn inputs(
    spec: Option<&BackendSpec>,
    module: Option<&str>,
    owner: Owner<'_>,
    environment: BTreeMap<String, String>,
    secrets: &ManagedState,
) -> Result<BackendInputs, Conflict> {
    let BackendProviderOrOwn::Provider(provider) = kind(spec, module) else {
        return Ok(BackendInputs {
            kind: None,
            write_block: false,
            config: BTreeMap::new(),
            environment,
            managed: None,
        });
    };
    let backend = of(provider);
    if let Some(module) = module.filter(|module| *module != backend.kind()) {
        return Err(Conflict {
            module: module.to_owned(),
            provider: provider_name(provider),
            wanted: backend.kind(),
        });
    }
    Ok(BackendInputs {
        kind: Some(backend.kind().to_owned()),
        write_block: module.is_none(),
        config: spec
            .map(|spec| backend.config(spec, owner))
            .unwrap_or_default(),
        environment,
        managed: backend.managed().then(|| secrets.clone()),
    })
}

const fn provider_name(provider: BackendProvider) -> &'static str {
    match provider {
        BackendProvider::Managed => "managed",
        BackendProvider::Aws => "aws",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: Owner<'_> = Owner {
        namespace: "team",
        name: "web",
    };

    fn secrets() -> ManagedState {
        ManagedState {
            pointer: "web-state".to_owned(),
            slots: vec!["web-state-slot-0".to_owned()],
        }
    }

    fn aws() -> BackendSpec {
        BackendSpec {
            provider: Some(BackendProvider::Aws),
            s3: Some("s3-store".to_owned()),
            dynamo_db: Some("db-table".to_owned()),
            region: Some("us-east-1".to_owned()),
            key: None,
            secret_ref: None,
            adopt: false,
            migrate: false,
        }
    }

    fn resolve(
        spec: Option<&BackendSpec>,
        module: Option<&str>,
    ) -> Result<BackendInputs, Conflict> {
        inputs(spec, module, OWNER, BTreeMap::new(), &secrets())
    }

    #[test]
    fn without_a_word_the_state_is_managed() {
        let inputs = resolve(None, None).unwrap();
        assert_eq!(inputs.kind.as_deref(), Some("http"));
        assert!(inputs.write_block);
        assert_eq!(inputs.managed, Some(secrets()));
    }

    #[test]
    fn the_modules_own_backend_is_left_alone() {
        let inputs = resolve(None, Some("gcs")).unwrap();
        assert_eq!(
            (inputs.kind, inputs.write_block, inputs.managed),
            (None, false, None)
        );
        assert!(inputs.config.is_empty());
    }

    #[test]
    fn a_backend_without_a_provider_is_as_good_as_none() {
        let spec = BackendSpec {
            provider: None,
            s3: None,
            dynamo_db: None,
            region: None,
            key: None,
            secret_ref: None,
            adopt: true,
            migrate: false,
        };
        for module in [None, Some("gcs"), Some("s3")] {
            let (given, none) = (resolve(Some(&spec), module), resolve(None, module));
            assert!(given.unwrap() == none.unwrap(), "{module:?}");
            assert_eq!(is_managed(Some(&spec), module), is_managed(None, module));
        }
    }

    #[test]
    fn the_seeds_aws_form_is_an_s3_backend() {
        let inputs = resolve(Some(&aws()), None).unwrap();
        assert_eq!(inputs.kind.as_deref(), Some("s3"));
        assert!(inputs.write_block);
        assert_eq!(
            serde_json::to_value(inputs.config).unwrap(),
            serde_json::json!({
                "bucket": "s3-store", "key": "team/web.tfstate", "region": "us-east-1",
                "dynamodb_table": "db-table", "encrypt": true,
            })
        );
    }

    #[test]
    fn a_block_of_the_same_type_gets_only_partial_configuration() {
        let inputs = resolve(Some(&aws()), Some("s3")).unwrap();
        assert!(!inputs.write_block);
        assert_eq!(inputs.config["bucket"], "s3-store");
    }

    #[test]
    fn a_block_of_another_type_is_a_conflict() {
        let conflict = resolve(Some(&aws()), Some("gcs")).err().unwrap();
        assert_eq!(conflict.module, "gcs");
        assert!(conflict.to_string().contains("`backend \"gcs\"` block"));
    }

    #[test]
    fn without_a_table_the_lock_is_a_file_in_the_bucket() {
        let spec = BackendSpec {
            dynamo_db: None,
            key: Some("a/b".to_owned()),
            ..aws()
        };
        let inputs = resolve(Some(&spec), None).unwrap();
        assert_eq!(inputs.config["use_lockfile"], true);
        assert_eq!(inputs.config["key"], "a/b");
        assert!(!inputs.config.contains_key("dynamodb_table"));
    }
}
