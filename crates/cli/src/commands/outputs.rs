//! `outputs`: prints the outputs of a module.

use std::collections::BTreeMap;
use std::io::IsTerminal;

use alustan_api::ObjectKey;
use alustan_api::run::{Output, Outputs as Values};
use alustan_core::objects::outputs::{read, text};
use clap::{Args, ValueEnum};
use k8s_openapi::api::core::v1::Secret;
use serde_json::Value;

use crate::cluster::{Cluster, call};
use crate::condition::situation;
use crate::error::Error;
use crate::print;

/// Placeholder for a sensitive value.
const SENSITIVE: &str = "(sensitive)";

/// Print the outputs of the module.
#[derive(Debug, Args)]
pub(crate) struct Outputs {
    /// Name of the resource.
    name: String,
    /// Print only the raw value of this output, even if it is sensitive.
    key: Option<String>,
    /// Also print sensitive values.
    #[arg(long)]
    show: bool,
    /// Output format. Default: text.
    #[arg(short, long)]
    output: Option<Form>,
}

/// Output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// JSON object with the values by name.
    Json,
}

impl Outputs {
    pub(crate) async fn run(&self, cluster: &Cluster) -> Result<(), Error> {
        let (secret, values) = self.values(cluster).await?;
        let Some(key) = &self.key else {
            return print::bytes(self.list(&values).as_bytes());
        };
        let Some(Output { value, .. }) = values.get(key) else {
            return Err(missing(&secret, key, &values));
        };
        match self.output {
            Some(Form::Json) => print::line(&json(value)),
            None => {
                print::bytes(text(value).as_bytes())?;
                let end: &[u8] = if std::io::stdout().is_terminal() {
                    b"\n"
                } else {
                    b""
                };
                print::bytes(end)
            }
        }
    }

    /// Reads the Secret with the outputs. Returns the namespaced name of the Secret, and the outputs.
    async fn values(&self, cluster: &Cluster) -> Result<(ObjectKey, Values), Error> {
        let tf = cluster.resource(&self.name).await?;
        let outputs = tf
            .status
            .as_ref()
            .and_then(|status| status.outputs.as_ref());
        let Some(outputs) = outputs else {
            return Err(Error::Refused(format!(
                "{} has no outputs yet; current state: {}",
                ObjectKey::of(&tf),
                situation(&tf)
            )));
        };
        let secret = cluster.key(&outputs.secret_name);
        let action = format!("read Secret {secret}");
        let object = call(&action, cluster.api::<Secret>().get_opt(&secret.name)).await?;
        let Some(object) = object else {
            return Err(Error::Refused(format!(
                "Secret {secret} with the outputs of {} does not exist. To start an apply, which \
                 creates the Secret: kubectl alustan reconcile {} -n {} --apply",
                ObjectKey::of(&tf),
                self.name,
                cluster.namespace
            )));
        };
        Ok((secret, read(&object)))
    }

    /// Formats all outputs. Hides sensitive values without `--show`.
    fn list(&self, values: &Values) -> String {
        let shown = values.iter().map(|(key, output)| {
            let hidden = output.sensitive && !self.show;
            let value = if hidden {
                Value::from(SENSITIVE)
            } else {
                output.value.clone()
            };
            (key.clone(), value)
        });
        match self.output {
            Some(Form::Json) => json(&shown.collect::<BTreeMap<_, _>>()) + "\n",
            None => {
                let header = ["NAME", "VALUE"].map(str::to_owned);
                let rows = shown.map(|(key, value)| [key, text(&value)]);
                print::table(&std::iter::once(header).chain(rows).collect::<Vec<_>>())
            }
        }
    }
}

fn missing(secret: &ObjectKey, key: &str, values: &Values) -> Error {
    let names: Vec<_> = values.keys().map(String::as_str).collect();
    let names = if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(", ")
    };
    Error::Refused(format!(
        "Secret {secret} has no output {key}; existing outputs: {names}"
    ))
}

/// Formats values as JSON. Serialization of output values cannot fail.
fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn outputs(show: bool, output: Option<Form>) -> Outputs {
        Outputs {
            name: "web".into(),
            key: None,
            show,
            output,
        }
    }

    #[rstest]
    #[case::hidden(
        false,
        None,
        "NAME       VALUE\nhostname   a.test\nports      [80]\ntoken      (sensitive)\n"
    )]
    #[case::shown(
        true,
        None,
        "NAME       VALUE\nhostname   a.test\nports      [80]\ntoken      t0p\n"
    )]
    #[case::json(
        false,
        Some(Form::Json),
        r#"{"hostname": "a.test", "ports": [80], "token": "(sensitive)"}"#
    )]
    #[case::shown_json(
        true,
        Some(Form::Json),
        r#"{"hostname": "a.test", "ports": [80], "token": "t0p"}"#
    )]
    fn sensitive_outputs_are_hidden_without_show_flag(
        #[case] show: bool,
        #[case] form: Option<Form>,
        #[case] wanted: &str,
    ) {
        let output = |value: Value, sensitive| Output { value, sensitive };
        let values = Values::from([
            ("hostname".into(), output("a.test".into(), false)),
            ("ports".into(), output(vec![80].into(), false)),
            ("token".into(), output("t0p".into(), true)),
        ]);
        let list = outputs(show, form).list(&values);
        match form {
            None => assert_eq!(list, wanted),
            Some(Form::Json) => {
                let json = |text: &str| serde_json::from_str::<Value>(text).unwrap();
                assert_eq!(json(&list), json(wanted));
            }
        }
    }
}
