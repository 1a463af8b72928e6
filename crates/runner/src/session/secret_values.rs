//! Which values are secret, and never printed (rule 15).

use std::collections::BTreeMap;

use alustan_api::run::RunInputs;

use crate::layout::Vars;
use crate::variables::{self, Declared};

/// Everything known to be secret: credentials of the backend and of the pod, the password of
/// the state server, values of variables that the module marks as sensitive.
pub(super) fn of_run(
    inputs: &RunInputs,
    container: &Vars,
    server: &Vars,
    values: &variables::Values,
    declared: &BTreeMap<String, Declared>,
) -> Vec<String> {
    let mut secrets: Vec<String> = inputs.backend.environment.values().cloned().collect();
    secrets.extend(server.get("TF_HTTP_PASSWORD").cloned());
    secrets.extend(
        container
            .iter()
            .filter(|(name, value)| looks_secret(name, value))
            .map(|(_, it)| it.clone()),
    );
    secrets.extend(variables::sensitive_texts(values, declared));
    secrets
}

/// Whether an environment variable of the container is likely to hold a credential.
fn looks_secret(name: &str, value: &str) -> bool {
    const WORDS: &[&str] = &[
        "SECRET",
        "TOKEN",
        "PASSWORD",
        "PASSWD",
        "PRIVATE_KEY",
        "CREDENTIAL",
        "API_KEY",
        "ACCESS_KEY",
    ];
    let name = name.to_ascii_uppercase();
    let named = WORDS.iter().any(|word| name.contains(word)) && !name.ends_with("_FILE");
    named && value.len() >= 8 && !value.starts_with('/')
}
