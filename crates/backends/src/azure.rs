//! State in a container of Azure Blob Storage
//! (<https://developer.hashicorp.com/terraform/language/backend/azurerm>).

use alustan_api::BackendSpec;
use serde_json::json;

use crate::backend::{Backend, Config, Environment, Owner, text};

pub(crate) struct Azure;

impl Backend for Azure {
    fn name(&self) -> &'static str {
        "azure"
    }

    fn kind<'a>(&self, _: &'a BackendSpec) -> &'a str {
        "azurerm"
    }

    fn fields(&self) -> &'static [(&'static str, &'static str)] {
        &[
            ("storage_account_name", "storageAccount"),
            ("container_name", "container"),
            ("resource_group_name", "resourceGroup"),
            ("key", "key"),
        ]
    }

    fn config(&self, spec: &BackendSpec, owner: Owner<'_>) -> Config {
        let mut config = Config::from([
            (
                "storage_account_name".to_owned(),
                json!(spec.storage_account),
            ),
            ("container_name".to_owned(), json!(spec.container)),
            ("key".to_owned(), json!(owner.key(spec))),
        ]);
        if let Some(group) = &spec.resource_group {
            config.insert("resource_group_name".to_owned(), json!(group));
        }
        config
    }

    fn location(&self, config: &Config, _: &Environment) -> Option<String> {
        let account = text(config, "storage_account_name")?;
        let container = text(config, "container_name")?;
        Some(format!("{account}/{container}/{}", text(config, "key")?))
    }

    fn location_in(&self, workspace: &str, location: &str, _: &Config) -> String {
        format!("{location}env:{workspace}")
    }

    fn location_field(&self) -> &'static str {
        "key"
    }
}
