//! `plan`: prints the text of the pending plan.

use alustan_api::ObjectKey;
use alustan_api::names::{self, plan_key};
use clap::Args;
use k8s_openapi::api::core::v1::Secret;

use crate::cluster::{Cluster, call};
use crate::error::Error;
use crate::pending::{Pending, pending};
use crate::print;

/// Print the plan that waits for approval, and the command that approves it.
#[derive(Debug, Args)]
pub(crate) struct Plan {
    /// Name of the resource.
    name: String,
}

impl Plan {
    pub(crate) async fn run(&self, cluster: &Cluster) -> Result<(), Error> {
        let tf = cluster.resource(&self.name).await?;
        let pending = match pending(&tf) {
            Ok(pending) => pending,
            Err(none) => return print::line(&none.to_string()),
        };
        let secret = names::plan(&self.name);
        let action = format!("read Secret {}", cluster.key(&secret));
        let object = call(&action, cluster.api::<Secret>().get_opt(&secret)).await?;
        match object.and_then(|secret| text(&secret, &pending)) {
            Some(text) => print::line(text.trim_end())?,
            None => print::note(&format!(
                "the text of plan {} is not stored; see `kubectl alustan logs {} -n {}`",
                pending.id, self.name, cluster.namespace
            )),
        }
        let ObjectKey { namespace, name } = ObjectKey::of(&tf);
        let Pending { id, summary } = pending;
        print::line(&format!(
            "\nplan {id} of {namespace}/{name} waits for approval: {summary}\nto approve it: \
             kubectl alustan approve {name} {id} -n {namespace}"
        ))
    }
}

/// Returns the plan text in `secret`. `None` if the Secret contains the text of another plan.
fn text(secret: &Secret, plan: &Pending) -> Option<String> {
    let data = secret.data.as_ref()?;
    let of_it = data.get(plan_key::ID)?.0 == plan.id.as_bytes();
    let text = data.get(plan_key::TEXT).filter(|_| of_it)?;
    Some(String::from_utf8_lossy(&text.0).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    #[rstest]
    #[case::same_plan("MDEyMw==", Some("text"))]
    #[case::earlier_plan("NDU2Nw==", None)]
    fn plan_text_of_another_plan_is_not_shown(#[case] id: &str, #[case] wanted: Option<&str>) {
        let secret = json!({"data": {"id": id, "plan.txt": "dGV4dA=="}});
        let secret: Secret = serde_json::from_value(secret).unwrap();
        let plan = Pending {
            id: "0123".into(),
            summary: "+1 ~0 -0".into(),
        };
        assert_eq!(text(&secret, &plan).as_deref(), wanted);
    }
}
