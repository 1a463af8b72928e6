//! Command line arguments.

use clap::{Parser, Subcommand};

use crate::cluster::{Cluster, ClusterArguments};
use crate::commands::adopt::Adopt;
use crate::commands::approve::Approve;
use crate::commands::cancel::Cancel;
use crate::commands::discard::Discard;
use crate::commands::logs::Logs;
use crate::commands::outputs::Outputs;
use crate::commands::plan::Plan;
use crate::commands::reconcile::Reconcile;
use crate::commands::resources::Resources;
use crate::commands::restore::Restore;
use crate::commands::runs::Runs;
use crate::commands::state::State;
use crate::commands::suspend::{Resume, Suspend};
use crate::commands::tree::Tree;
use crate::commands::ui::Ui;
use crate::commands::unlock::Unlock;
use crate::commands::wait::Wait;
use crate::error::Error;

/// Inspect and operate Terraform resources.
#[derive(Debug, Parser)]
#[command(name = "kubectl-alustan", bin_name = "kubectl alustan", version)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) cluster: ClusterArguments,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Subcommands of `kubectl alustan`.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Tree(Tree),
    Runs(Runs),
    Plan(Plan),
    Approve(Approve),
    Discard(Discard),
    Cancel(Cancel),
    Reconcile(Reconcile),
    Suspend(Suspend),
    Resume(Resume),
    Logs(Logs),
    Outputs(Outputs),
    Resources(Resources),
    State(State),
    Restore(Restore),
    Adopt(Adopt),
    Unlock(Unlock),
    Wait(Wait),
    Ui(Ui),
}

impl Command {
    pub(crate) async fn run(&self, cluster: &Cluster) -> Result<(), Error> {
        match self {
            Self::Tree(tree) => tree.run(cluster).await,
            Self::Runs(runs) => runs.run(cluster).await,
            Self::Plan(plan) => plan.run(cluster).await,
            Self::Approve(approve) => approve.run(cluster).await,
            Self::Discard(discard) => discard.run(cluster).await,
            Self::Cancel(cancel) => cancel.run(cluster).await,
            Self::Reconcile(reconcile) => reconcile.run(cluster).await,
            Self::Suspend(suspend) => suspend.run(cluster).await,
            Self::Resume(resume) => resume.run(cluster).await,
            Self::Logs(logs) => logs.run(cluster).await,
            Self::Outputs(outputs) => outputs.run(cluster).await,
            Self::Resources(resources) => resources.run(cluster).await,
            Self::State(state) => state.run(cluster).await,
            Self::Restore(restore) => restore.run(cluster).await,
            Self::Adopt(adopt) => adopt.run(cluster).await,
            Self::Unlock(unlock) => unlock.run(cluster).await,
            Self::Wait(wait) => wait.run(cluster).await,
            Self::Ui(ui) => ui.run(cluster).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use rstest::rstest;

    #[test]
    fn command_line_definition_is_valid() {
        Arguments::command().debug_assert();
    }

    #[rstest]
    #[case("suspend")]
    #[case("suspend web --all")]
    #[case("suspend -A")]
    #[case("suspend web -A")]
    #[case("approve")]
    #[case("discard")]
    #[case("cancel")]
    #[case("cancel web now")]
    #[case("plan web --wait")]
    #[case("plan web --now --timeout 90s")]
    #[case("plan web --now --wait --timeout soon")]
    #[case("wait web --timeout soon")]
    #[case("wait web --timeout -1m")]
    #[case("wait web --revision main")]
    #[case("outputs web -o yaml")]
    #[case("resources")]
    #[case("resources web -o text")]
    #[case("state push web")]
    #[case("restore")]
    #[case("unlock web")]
    #[case("adopt web")]
    #[case("adopt web --from flux --image-name i")]
    #[case("adopt web --from burrito")]
    #[case("adopt web.tfstate --from state --image-name i --url u")]
    #[case("adopt web.tfstate --from state --image-name i --name web")]
    #[case("adopt web --from hcp --image-name i")]
    #[case("ui web")]
    #[case("ui --port 70000")]
    fn invalid_arguments_are_refused(#[case] line: &str) {
        let words = std::iter::once("kubectl-alustan").chain(line.split(' '));
        let error = Arguments::try_parse_from(words).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{error}");
    }

    #[rstest]
    #[case("suspend web db")]
    #[case("resume --all -A")]
    #[case("reconcile --reason=RepositoryUnreachable -n team")]
    #[case("reconcile web --reason RepositoryUnreachable")]
    #[case("-n team approve web 0f3c9a51b2e4d870")]
    #[case("discard web 0f3c9a51b2e4d870")]
    #[case("cancel web 7 -n team")]
    #[case("plan web")]
    #[case("plan web --now")]
    #[case("plan web --now --wait --timeout 90s")]
    #[case("wait web --timeout 90s --context here")]
    #[case("wait web --revision 0f3c9a5 --generation 3")]
    #[case("logs web -f --run 3")]
    #[case("restore web -n team")]
    #[case("resources web -o wide -n team")]
    #[case("state pull web -n team")]
    #[case("adopt --from tofu-controller web --image-name i -n team")]
    #[case("adopt --from burrito web --image-name i --apply")]
    #[case("adopt --from hcp web --image-name i --url u --registry-secret r")]
    #[case("adopt --from state web.tfstate --name web --image-name i --url u --path a")]
    #[case("state push web file.tfstate --force")]
    #[case("ui --port 8080 -n team")]
    fn valid_arguments_are_accepted(#[case] line: &str) {
        let words = std::iter::once("kubectl-alustan").chain(line.split(' '));
        Arguments::try_parse_from(words).unwrap();
    }
}
