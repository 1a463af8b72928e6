//! Searches of the model: no rule is broken, and the search finds a broken rule.

#![expect(clippy::panic, clippy::unwrap_used, reason = "these are tests")]

use std::io::Write as _;
use std::time::Instant;

use alustan_model::{
    Action, BECOMES_STABLE, Backend, Budget, Defect, Rule, RunModel, Scenario, State,
};
use stateright::{Checker, HasDiscoveries, Model as _, Path};

/// Scenario of a new resource with approval mode `Auto`.
const AUTO: Scenario = Scenario {
    name: "auto",
    is_manual: false,
    has_lease: true,
    backend: Backend::Managed,
    is_applied: false,
    budget: Budget::NONE,
    defect: None,
};

/// Faults of the cluster that most scenarios combine with other faults and acts.
const UNRELIABLE: Budget = Budget {
    elections: 1,
    stale_reads: 1,
    ..Budget::NONE
};

/// Searches all states of `scenario` with a breadth-first search, until `ends`.
fn search(scenario: Scenario, ends: HasDiscoveries) -> impl Checker<RunModel> {
    let name = scenario.name;
    let began = Instant::now();
    let checker = RunModel::new(scenario)
        .checker()
        .threads(2)
        .finish_when(ends)
        .spawn_bfs()
        .join();
    // Writes to standard error directly, because the test harness captures the output of a passing test.
    let mut stderr = std::io::stderr().lock();
    writeln!(
        stderr,
        "{name}: {} unique states, {} transitions, depth {}, {} decisions, {:.1} s",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
        checker.model().decision_count(),
        began.elapsed().as_secs_f64(),
    )
    .unwrap();
    checker
}

/// Searches all states of `scenario`. Panics if a rule is broken or a situation is not reached. `ALUSTAN_MODEL_BUDGET` increases each fault and
/// act of the scenario.
fn explore(mut scenario: Scenario) {
    let name = scenario.name;
    let extra = std::env::var("ALUSTAN_MODEL_BUDGET").map_or(0, |extra| extra.parse().unwrap());
    scenario.budget = scenario.budget.increased_by(extra);
    let checker = search(scenario, HasDiscoveries::AnyFailures);
    for property in checker.model().properties() {
        let discovery = checker.discovery(property.name);
        match (property.expectation.discovery_is_failure(), discovery) {
            (true, Some(path)) => {
                let schedule = checker.model().fair_schedule(path.last_state()).join("\n");
                panic!(
                    "{name}: broken: {}\n{}\nwithout further faults:\n{schedule}",
                    property.name,
                    actions(path),
                )
            }
            (false, None) => panic!("{name}: never reached: {}", property.name),
            (true, None) | (false, Some(_)) => {}
        }
    }
}

/// Searches `scenario`, which has a defect. Panics if the search does not find that the property `broken` does not hold. Prints the shortest
/// actions that break it.
fn find(scenario: Scenario, broken: &'static str) {
    let name = scenario.name;
    let checker = search(scenario, HasDiscoveries::AnyOf([broken].into()));
    let Some(path) = checker.discovery(broken) else {
        panic!("{name}: not found: {broken}");
    };
    let actions = actions(path);
    let mut stderr = std::io::stderr().lock();
    writeln!(stderr, "{name}: found: {broken}\n{actions}").unwrap();
}

/// Returns the actions of `path`, one per line.
fn actions(path: Path<State, Action>) -> String {
    let steps = path.into_vec();
    let actions = steps
        .iter()
        .filter_map(|(state, action)| Some(state.describe(action.as_ref()?)));
    actions.collect::<Vec<_>>().join("\n")
}

#[test]
fn edits_keep_the_rules() {
    explore(Scenario {
        name: "edit",
        budget: Budget {
            edits: 1,
            ..UNRELIABLE
        },
        ..AUTO
    });
}

#[test]
fn crashes_and_lost_responses_keep_the_rules() {
    explore(Scenario {
        name: "crash, lost response",
        budget: Budget {
            crashes: 1,
            lost_answers: 1,
            ..UNRELIABLE
        },
        ..AUTO
    });
}

#[test]
fn second_and_lost_pods_keep_the_rules() {
    explore(Scenario {
        name: "second pod, lost pod",
        budget: Budget {
            second_pods: 1,
            lost_pods: 1,
            ..UNRELIABLE
        },
        ..AUTO
    });
}

#[test]
fn locks_of_lost_pods_keep_the_rules() {
    explore(Scenario {
        name: "lock of a lost pod",
        backend: Backend::S3,
        budget: Budget {
            elections: 1,
            lost_pods: 1,
            second_pods: 1,
            hours: 1,
            ..Budget::NONE
        },
        ..AUTO
    });
}

#[test]
fn failures_and_startup_timeouts_keep_the_rules() {
    explore(Scenario {
        name: "failure, timeout",
        budget: Budget {
            elections: 1,
            failures: 1,
            hours: 1,
            ..Budget::NONE
        },
        ..AUTO
    });
}

#[test]
fn approvals_keep_the_rules() {
    explore(Scenario {
        name: "approval",
        is_manual: true,
        budget: Budget {
            approvals: 1,
            lost_pods: 1,
            ..UNRELIABLE
        },
        ..AUTO
    });
}

#[test]
fn approvals_and_edits_keep_the_rules() {
    explore(Scenario {
        name: "approval, edit",
        is_manual: true,
        budget: Budget {
            approvals: 2,
            edits: 1,
            elections: 1,
            ..Budget::NONE
        },
        ..AUTO
    });
}

#[test]
fn cancellations_keep_the_rules() {
    explore(Scenario {
        name: "cancellation",
        budget: Budget {
            cancellations: 1,
            ..UNRELIABLE
        },
        ..AUTO
    });
}

#[test]
fn deletions_keep_the_rules() {
    explore(Scenario {
        name: "deletion",
        budget: Budget {
            deletions: 1,
            ..UNRELIABLE
        },
        ..AUTO
    });
}

#[test]
fn deletions_of_applied_resources_keep_the_rules() {
    explore(Scenario {
        name: "deletion of an applied resource",
        is_applied: true,
        budget: Budget {
            deletions: 1,
            lost_answers: 1,
            lost_pods: 1,
            ..UNRELIABLE
        },
        ..AUTO
    });
}

/// Resource versions and claims keep the rules even if both controllers write at the same time.
#[test]
fn two_writers_without_a_lease_keep_the_rules() {
    explore(Scenario {
        name: "no Lease: crash, lost response, second pod",
        has_lease: false,
        budget: Budget {
            crashes: 1,
            lost_answers: 1,
            second_pods: 1,
            ..Budget::NONE
        },
        ..AUTO
    });
}

#[test]
fn two_writers_without_a_lease_delete_by_the_rules() {
    explore(Scenario {
        name: "no Lease: deletion",
        has_lease: false,
        budget: Budget {
            deletions: 1,
            ..Budget::NONE
        },
        ..AUTO
    });
}

#[test]
fn search_finds_a_write_without_resource_version() {
    find(
        Scenario {
            name: "defect: no resource version",
            has_lease: false,
            budget: Budget {
                edits: 1,
                ..Budget::NONE
            },
            defect: Some(Defect::WritesWithoutVersion),
            ..AUTO
        },
        Rule::PinBeforeApply.name(),
    );
}

#[test]
fn search_finds_a_pod_without_a_claim() {
    find(
        Scenario {
            name: "defect: no claim",
            budget: Budget {
                second_pods: 1,
                ..Budget::NONE
            },
            defect: Some(Defect::SkipsClaim),
            ..AUTO
        },
        Rule::OneMutator.name(),
    );
}

#[test]
fn search_finds_an_unapproved_apply() {
    find(
        Scenario {
            name: "defect: no approval",
            is_manual: true,
            defect: Some(Defect::SkipsApproval),
            ..AUTO
        },
        Rule::UnapprovedApply.name(),
    );
}

#[test]
fn search_finds_a_released_lock_of_a_live_pod() {
    find(
        Scenario {
            name: "defect: pods are not observed",
            budget: Budget {
                hours: 1,
                ..Budget::NONE
            },
            defect: Some(Defect::IgnoresPods),
            ..AUTO
        },
        Rule::LockOfLivePod.name(),
    );
}

#[test]
fn search_finds_an_apply_without_a_pin() {
    find(
        Scenario {
            name: "defect: no pin",
            defect: Some(Defect::SkipsPin),
            ..AUTO
        },
        Rule::PinBeforeApply.name(),
    );
}

#[test]
fn search_finds_a_resource_that_does_not_become_stable() {
    find(
        Scenario {
            name: "defect: no report",
            defect: Some(Defect::LosesReport),
            ..AUTO
        },
        BECOMES_STABLE,
    );
}
