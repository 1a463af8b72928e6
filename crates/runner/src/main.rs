//! Entry point of `alustan-runner`, see the library crate.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use alustan_api::run::PROTOCOL;
use alustan_runner::build::{build, prepare, pull};
use alustan_runner::cache_volume;
use alustan_runner::engine::command::Commands;
use alustan_runner::engine::processes::Processes;
use alustan_runner::engine::signals::{listen, reap_orphans};
use alustan_runner::log;
use alustan_runner::paths::{Paths, Vars, process_vars};
use alustan_runner::record::Identity;
use alustan_runner::run::{RunEnvironment, run};
use alustan_runner::secrets::redact::Redactor;
use alustan_runner::secrets::values::of_environment;
use alustan_runner::state::bootstrap::bootstrap;
use alustan_state::secrets::KubeSecrets;
use clap::{Parser, Subcommand};
use kube::config::KubeConfigOptions;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};

/// Runner of Alustan, the program in run pods and build pods.
#[derive(Parser)]
#[command(name = "alustan-runner")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Claims the run that the environment variables identify, and executes the run.
    Run,
    /// Pulls the context of a build.
    Pull,
    /// Prepares the pulled context: executes `init` and collects the providers.
    Prepare,
    /// Appends the prepared context to the base image and pushes the result.
    Build,
    /// Removes the content of the cache volume: the directory of a resource in a shared claim.
    EmptyCache,
    /// Creates the bucket and the lock table of a state, with the credentials in the environment variables.
    #[command(hide = true)]
    Bootstrap {
        /// Bucket and lock table to create, as JSON.
        place: String,
        /// Creates only the lock table. Neither checks nor creates the bucket.
        #[arg(long)]
        only_table: bool,
    },
    /// Prints the version of the program and of its protocol.
    Version,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let _ = rustls::crypto::ring::default_provider().install_default();
    // Processes that the module starts run as the same user as the runner. They must neither read the memory of the runner nor trace it.
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        log!("failed to protect the memory of the runner: {error}");
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return complain(&error),
    };
    let done = match arguments.command {
        Command::Run => runtime.block_on(start_run()),
        Command::Pull => Ok(runtime.block_on(start_pull())),
        Command::Prepare => runtime.block_on(start_prepare()),
        Command::Build => Ok(runtime.block_on(start_build())),
        Command::Bootstrap { place, only_table } => {
            runtime.block_on(start_bootstrap(&place, only_table))
        }
        Command::EmptyCache => empty_cache(),
        Command::Version => print_version(),
    };
    // Limits the wait for pending writes to the log, so that they do not delay the exit.
    runtime.shutdown_timeout(Duration::from_millis(200));
    done.unwrap_or_else(|error| complain(error.as_ref()))
}

fn complain(error: &dyn std::error::Error) -> ExitCode {
    log!("{}", redactor(&process_vars()).text(&error.to_string()));
    ExitCode::FAILURE
}

type Done = Result<ExitCode, Box<dyn std::error::Error>>;

fn print_version() -> Done {
    use std::io::Write;
    let version = env!("CARGO_PKG_VERSION");
    writeln!(
        std::io::stdout(),
        "alustan-runner {version} protocol {PROTOCOL}"
    )?;
    Ok(ExitCode::SUCCESS)
}

fn empty_cache() -> Done {
    cache_volume::empty(&Paths::from_vars(&process_vars()).cache)?;
    Ok(ExitCode::SUCCESS)
}

async fn start_run() -> Done {
    let vars = process_vars();
    let identity = identity(&vars)?;
    let commands = commands(&vars)?;
    // Reaps orphaned processes only in run pods. In build pods, `reap_orphans` would also reap the credential helper, a child process for
    // which the registry client waits.
    reap_orphans(commands.processes.clone())?;
    let client = kube::Client::try_from(client_config(&vars).await?)?;
    let secrets = Arc::new(KubeSecrets::new(client, &identity.namespace));
    let paths = Paths::from_vars(&vars);
    Ok(Box::pin(run(RunEnvironment {
        identity,
        paths,
        vars,
        secrets,
        commands,
    }))
    .await)
}

async fn start_pull() -> ExitCode {
    let vars = process_vars();
    pull(&Paths::from_vars(&vars), &vars).await
}

async fn start_prepare() -> Done {
    let vars = process_vars();
    let commands = commands(&vars)?;
    Ok(prepare(&Paths::from_vars(&vars), &vars, commands).await)
}

async fn start_build() -> ExitCode {
    let vars = process_vars();
    build(&Paths::from_vars(&vars), &vars).await
}

async fn start_bootstrap(place: &str, only_table: bool) -> Done {
    bootstrap(&serde_json::from_str(place)?, only_table).await?;
    Ok(ExitCode::SUCCESS)
}

fn commands(vars: &Vars) -> std::io::Result<Commands> {
    let processes = Arc::new(Processes::adopt_orphans());
    let stop = listen()?;
    let grace = vars
        .get("ALUSTAN_GRACE")
        .and_then(|value| value.parse().ok())
        .unwrap_or(590);
    let grace = Duration::from_secs(grace);
    Ok(Commands {
        processes,
        stop,
        grace,
        redactor: redactor(vars),
        tail: log::tail(),
    })
}

/// Returns a redactor of the secret values in the environment variables.
fn redactor(vars: &Vars) -> Redactor {
    Redactor::new(of_environment(vars, &BTreeSet::new()))
}

/// Returns the configuration of the Kubernetes client. In a pod, reads the address of the API server from environment variables, so that no
/// DNS query is needed.
async fn client_config(vars: &Vars) -> Result<kube::Config, Box<dyn std::error::Error>> {
    // Ignores `KUBECONFIG`, because this variable configures the providers of the module.
    let file = vars.get("ALUSTAN_KUBECONFIG");
    let mut config = if let Some(file) = file.filter(|file| !file.is_empty()) {
        let kubeconfig = kube::config::Kubeconfig::read_from(file)?;
        kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?
    } else {
        kube::Config::incluster_env()?
    };
    // Uses no proxy: the proxy variables are for the providers of the module, and the API server is in the cluster.
    config.proxy_url = None;
    // The runner retries each request itself, until the deadline of the request.
    config.default_retry = false;
    Ok(config)
}

fn identity(vars: &Vars) -> Result<Identity, String> {
    let get = |name: &str| {
        vars.get(name)
            .cloned()
            .ok_or_else(|| format!("{name} is not set"))
    };
    Ok(Identity {
        namespace: get("ALUSTAN_NAMESPACE")?,
        record: get("ALUSTAN_RECORD")?,
        number: get("ALUSTAN_RUN")?
            .parse()
            .map_err(|_| "ALUSTAN_RUN is not a number".to_owned())?,
        decision: vars.get("ALUSTAN_DECISION").cloned(),
        pod_uid: get("ALUSTAN_POD_UID")?,
        pod: get("ALUSTAN_POD_NAME")?,
    })
}
