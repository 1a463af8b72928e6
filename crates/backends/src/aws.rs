//! State in an S3 bucket
//! (<https://developer.hashicorp.com/terraform/language/backend/s3>).

use std::collections::BTreeMap;

use alustan_api::BackendSpec;
use serde_json::{Value, json};

use crate::{Backend, Owner};

pub(crate) struct Aws;

/// The key of the state in the bucket, where none is given.
pub fn default_key(owner: Owner<'_>) -> String {
    format!("{}/{}.tfstate", owner.namespace, owner.name)
}

impl Backend for Aws {
    fn kind(&self) -> &'static str {
        "s3"
    }

    fn config(&self, spec: &BackendSpec, owner: Owner<'_>) -> BTreeMap<String, Value> {
        let key = spec.key.clone().unwrap_or_else(|| default_key(owner));
        let lock = spec.dynamo_db.as_ref().map_or_else(
            || ("use_lockfile", json!(true)),
            |table| ("dynamodb_table", json!(table)),
        );
        [
            ("bucket", json!(spec.s3)),
            ("region", json!(spec.region)),
            ("key", json!(key)),
            ("encrypt", json!(true)),
            lock,
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
    }
}
