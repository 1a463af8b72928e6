//! `sweep [--all-rights] COMMAND…`: runs a command that uses the dev cluster, and then checks secrets and rights. A value of a Secret must
//! not appear outside of Secrets. The operator and the runners must not make calls that their roles do not allow. With `--all-rights`, they
//! must have used each right that their roles grant.

#![expect(clippy::expect_used, clippy::print_stderr, reason = "a tool")]

use std::process::ExitCode;

use alustan_tests::rights::Audit;
use alustan_tests::{Cluster, Found, Sweep};
use tokio::process::Command;

#[tokio::main]
async fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1).peekable();
    let all_rights = arguments
        .next_if(|argument| argument == "--all-rights")
        .is_some();
    let program = arguments.next().expect("usage: sweep COMMAND...");
    let cluster = Cluster::connect().await;
    let audit = Audit::begin(&cluster);
    let sweep = Sweep::begin(&cluster, "e2e-").await;
    let good = Command::new(&program)
        .args(arguments)
        .status()
        .await
        .expect("a command that can be run")
        .success();
    let swept = sweep.end().await;
    let canaries = swept.inputs();
    let places = swept.search(&canaries).await;
    let leaks: Found = places
        .into_iter()
        .filter(|(place, _)| !place.starts_with("etcd secrets/"))
        .collect();
    eprintln!(
        "{} secret values were looked for; {} places have some that should not",
        canaries.count(),
        leaks.len()
    );
    for (place, names) in &leaks {
        eprintln!(
            "{place}: {}",
            names.iter().take(3).cloned().collect::<Vec<_>>().join("; ")
        );
    }
    // A command that failed may not have used all rights.
    let wrong = audit.end(all_rights && good).await;
    eprintln!(
        "the calls of operator and runners were held to their roles; {} are wrong",
        wrong.len()
    );
    for message in &wrong {
        eprintln!("{message}");
    }
    ExitCode::from(u8::from(!good || !leaks.is_empty() || !wrong.is_empty()))
}
