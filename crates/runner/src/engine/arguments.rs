//! Arguments of engine commands in `spec.engine`.

use alustan_api::run::EngineArguments;

use crate::paths::Vars;

/// Adds `arguments` to the environment of scripts, as variables `TF_CLI_ARGS_plan`, `TF_CLI_ARGS_apply` and `TF_CLI_ARGS_destroy`. Appends
/// `arguments` to existing values, so that `arguments` take precedence.
pub fn add_to_scripts(environment: &mut Vars, arguments: &EngineArguments) {
    let plan: Vec<_> = of_plan(arguments).collect();
    let refresh = skipped_refresh(arguments);
    let apply: Vec<_> = of_change(arguments).chain(refresh).collect();
    let destroy: Vec<_> = of_change(arguments).collect();
    for (command, arguments) in [("plan", plan), ("apply", apply), ("destroy", destroy)] {
        if arguments.is_empty() {
            continue;
        }
        let name = format!("TF_CLI_ARGS_{command}");
        let own = environment.get(&name).cloned();
        let all: Vec<_> = own.into_iter().chain(arguments).collect();
        environment.insert(name, all.join(" "));
    }
}

/// Returns the arguments of `plan`.
pub fn of_plan(arguments: &EngineArguments) -> impl Iterator<Item = String> + use<> {
    let refresh = skipped_refresh(arguments);
    parallelism(arguments).into_iter().chain(refresh)
}

/// Returns the arguments of commands that change objects: `apply` and `destroy`.
pub fn of_change(arguments: &EngineArguments) -> impl Iterator<Item = String> + use<> {
    let limit = arguments.lock_timeout;
    let lock_timeout = limit.map(|limit| format!("-lock-timeout={limit}ms"));
    parallelism(arguments).into_iter().chain(lock_timeout)
}

/// Returns the argument `-parallelism`.
pub fn parallelism(arguments: &EngineArguments) -> Option<String> {
    let number = arguments.parallelism?;
    Some(format!("-parallelism={number}"))
}

fn skipped_refresh(arguments: &EngineArguments) -> Option<String> {
    arguments.skips_refresh.then(|| "-refresh=false".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_get_arguments_after_those_of_the_container() {
        let mut environment = Vars::from([("TF_CLI_ARGS_plan".to_owned(), "-compact".to_owned())]);
        add_to_scripts(&mut environment, &EngineArguments::default());
        assert_eq!(environment.len(), 1);
        let arguments = EngineArguments {
            parallelism: Some(3),
            skips_refresh: true,
            lock_timeout: Some(1_500),
        };
        add_to_scripts(&mut environment, &arguments);
        let wanted = [
            ("TF_CLI_ARGS_plan", "-compact -parallelism=3 -refresh=false"),
            (
                "TF_CLI_ARGS_apply",
                "-parallelism=3 -lock-timeout=1500ms -refresh=false",
            ),
            ("TF_CLI_ARGS_destroy", "-parallelism=3 -lock-timeout=1500ms"),
        ];
        let wanted = wanted.map(|(name, text)| (name.to_owned(), text.to_owned()));
        assert_eq!(environment, Vars::from(wanted));
    }
}
