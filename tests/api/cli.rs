//! `kubectl alustan` as users run it. No operator runs: the tests write the objects that the operator would write.

mod logs;
mod restore;
mod state;

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use alustan_api::labels::{COMPONENT, Component, NAME};
use alustan_api::{
    APPLY_AT, CANCEL_RUN, DISCARD_PLAN, PLAN_AT, RECONCILE_AT, Terraform, labels, names,
};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::server::built;
use crate::space::{Space, resource, with};

/// Returns the path of `kubectl-alustan`.
pub(crate) fn program() -> &'static PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| built("kubectl-alustan").unwrap())
}

/// Exit code, stdout and stderr of a command.
#[derive(Debug)]
pub(crate) struct CommandOutput {
    exit_code: i32,
    stdout: String,
    pub(crate) stderr: String,
}

impl CommandOutput {
    fn of(output: Output) -> Self {
        Self {
            exit_code: output.status.code().unwrap(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Asserts exit code 0. Returns stdout.
    #[track_caller]
    pub(crate) fn success(self) -> String {
        assert_eq!(self.exit_code, 0, "{self:?}");
        self.stdout
    }

    /// Asserts exit code 1. Returns stderr.
    #[track_caller]
    pub(crate) fn failure(self) -> String {
        assert_eq!(self.exit_code, 1, "{self:?}");
        self.stderr
    }
}

/// Builds the command `kubectl-alustan WORDS` for the namespace of `space`.
fn command(space: &Space, words: &str) -> Command {
    let mut command = Command::new(program());
    command
        .args(words.split(' '))
        .args(["-n", &space.namespace])
        .env("KUBECONFIG", space.server.kubeconfig_file())
        .stdin(Stdio::null());
    command
}

pub(crate) async fn run(space: &Space, words: &str) -> CommandOutput {
    let output = tokio::process::Command::from(command(space, words)).output();
    CommandOutput::of(output.await.unwrap())
}

/// Applies `resource` and sets its status to `status`, with the current generation as the observed generation.
async fn apply(space: &Space, resource: &Value, mut status: Value) {
    space.apply(resource).await.unwrap();
    let name = &resource["metadata"]["name"];
    let generation = get(space, name.as_str().unwrap()).await.metadata.generation;
    status["observedGeneration"] = json!(generation);
    for condition in status["conditions"].as_array_mut().unwrap() {
        condition["observedGeneration"] = json!(generation);
        condition["lastTransitionTime"] = json!("2026-01-01T00:00:00Z");
    }
    let status = json!({
        "apiVersion": "alustan.io/v1alpha1", "kind": "Terraform", "metadata": {"name": name},
        "status": status,
    });
    let parameters = PatchParams::apply("tests").validation_strict();
    let raw = space.raw();
    raw.patch_status(name.as_str().unwrap(), &parameters, &Patch::Apply(&status))
        .await
        .unwrap();
}

/// Applies the resource `name` with the status after a successful apply.
async fn apply_as_applied(space: &Space, name: &str) {
    apply(space, &resource(name), status("Success", "True", "Applied")).await;
}

/// Applies `web` with the status during a run. `state` is `Planning` or `Applying`.
async fn apply_as_running(space: &Space, state: &str) {
    apply(space, &resource("web"), status(state, "Unknown", "Running")).await;
}

async fn get(space: &Space, name: &str) -> Terraform {
    space.api::<Terraform>().get(name).await.unwrap()
}

/// Returns a status with the state `state`, and a condition `Ready` with the status `ready` and the reason `reason`.
fn status(state: &str, ready: &str, reason: &str) -> Value {
    let stalled = if state == "Stalled" { "True" } else { "False" };
    let message = format!("{reason} it is");
    json!({
        "state": state, "message": message,
        "conditions": [
            {"type": "Ready", "status": ready, "reason": reason, "message": message},
            {"type": "Stalled", "status": stalled, "reason": reason, "message": message},
        ],
    })
}

/// Returns a status with a plan that waits for approval.
fn awaiting(id: &str) -> Value {
    let mut status = status("AwaitingApproval", "False", "AwaitingApproval");
    status["plan"] = json!({
        "summary": "+0 ~1 -2", "id": id, "pendingApproval": true,
        "add": 0, "change": 1, "destroy": 2,
    });
    status
}

async fn create_secret(space: &Space, name: &str, data: Value) {
    space
        .create::<Secret>(json!({"metadata": {"name": name}, "stringData": data}))
        .await;
}

/// Creates the ServiceAccount `default`, which pods require. These tests have no controller that creates it.
async fn create_account(space: &Space) {
    space
        .create::<ServiceAccount>(json!({"metadata": {"name": "default"}}))
        .await;
}

/// Creates a pod of the run `number` of `web`. The pod stays pending, because the test cluster has no scheduler.
async fn create_run_pod(space: &Space, number: i64) {
    create_account(space).await;
    space
        .create::<Pod>(json!({
            "metadata": {
                "name": format!("web-apply-{number}-x"),
                "labels": {NAME: "web", COMPONENT: Component::Run.as_str()},
            },
            "spec": {"containers": [{"name": "terraform", "image": "127.0.0.1:1/a"}]},
        }))
        .await;
}

#[tokio::test]
async fn kubectl_runs_alustan_as_a_plugin() {
    let space = Space::new().await;
    apply_as_applied(&space, "web").await;
    let folder = program().parent().unwrap().display();
    let path = format!("{folder}:{}", std::env::var("PATH").unwrap());
    let kubectl = |arguments: &[&str]| {
        let mut command = space.server.kubectl_command();
        CommandOutput::of(command.args(arguments).env("PATH", &path).output().unwrap())
    };
    let tree = kubectl(&["alustan", "tree", "-n", &space.namespace]).success();
    assert!(tree.contains("web"), "{tree}");
    let output = kubectl(&["alustan", "approve"]);
    assert_eq!(output.exit_code, 2, "{output:?}");
    assert!(
        output.stderr.contains("Usage: kubectl alustan approve"),
        "{output:?}"
    );
}

#[tokio::test]
async fn error_names_the_missing_object_and_the_remedy() {
    let space = Space::new().await;
    let why = run(&space, "approve web").await.failure();
    let wanted = format!(
        "error: Terraform web not found in namespace {}; `kubectl get tf -A` lists all resources\n",
        space.namespace
    );
    assert_eq!(why, wanted);
    let why = run(&space, "tree --context elsewhere").await.failure();
    assert!(
        why.contains("kubeconfig") && why.contains("elsewhere"),
        "{why}"
    );
}

#[tokio::test]
async fn error_for_a_user_without_rights_names_resource_and_user() {
    let space = Space::new().await;
    apply(&space, &resource("web"), awaiting("0123")).await;
    let mut command = command(&space, "suspend web");
    let nobody = space.server.kubeconfig_file_of("nobody");
    let why = CommandOutput::of(command.env("KUBECONFIG", nobody).output().unwrap()).failure();
    let message = format!("error: cannot read Terraform {}/web", space.namespace);
    assert!(
        why.starts_with(&message) && why.contains("\"nobody\""),
        "{why}"
    );
}

#[tokio::test]
async fn tree_shows_dependencies() {
    let (space, infra) = (Space::new().await, Space::new().await);
    let other = json!({"name": "network", "namespace": infra.namespace});
    apply_as_applied(&infra, "network").await;
    apply_as_applied(&infra, "unrelated").await;
    let cluster = with(resource("cluster"), "/dependsOn", Some(json!([other])));
    apply(&space, &cluster, status("Failed", "False", "ApplyFailed")).await;
    let gone = json!({"name": "gone", "namespace": infra.namespace});
    let apps = json!([{"name": "cluster"}, gone]);
    let apps = with(resource("apps"), "/dependsOn", Some(apps));
    space.apply(&apps).await.unwrap();

    let tree = run(&space, "tree").await.success();
    let key = |name| format!("{}/{name}", infra.namespace);
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let lines: Vec<String> = tree.lines().map(words).collect();
    let wanted = [
        "NAME STATE READY REASON".to_owned(),
        format!("{} missing", key("gone")),
        "└── apps Pending Unknown".to_owned(),
        format!("{} Success True Applied", key("network")),
        "└── cluster Failed False ApplyFailed".to_owned(),
        "└── apps (see above)".to_owned(),
    ];
    assert_eq!(lines, wanted, "{tree}");

    let part = run(&space, "tree cluster").await.success();
    assert!(part.contains("apps") && !part.contains("gone"), "{part}");
    let all = run(&space, "tree -A").await.success();
    assert!(all.contains(&key("unrelated")), "{all}");
}

#[tokio::test]
async fn a_plan_is_shown_and_approved_by_its_id() {
    let space = Space::new().await;
    apply(&space, &resource("web"), awaiting("0123")).await;
    let text = json!({"plan.txt": "- null_resource.a\n", "id": "0123"});
    create_secret(&space, &names::plan("web"), text).await;
    let plan = run(&space, "plan web").await.success();
    let approve = format!("kubectl alustan approve web 0123 -n {}", space.namespace);
    for word in ["- null_resource.a\n", "plan 0123 of ", "+0 ~1 -2", &approve] {
        assert!(plan.contains(word), "{word} is not in:\n{plan}");
    }

    let why = run(&space, "approve web 4567").await.failure();
    assert!(
        why.contains("plan 4567") && why.contains("0123 (+0 ~1 -2)"),
        "{why}"
    );
    assert_eq!(get(&space, "web").await.spec.approval.plan, None);

    let output = run(&space, "approve web --field-manager alice")
        .await
        .success();
    assert!(
        output.starts_with("plan 0123 of ") && output.contains("+0 ~1 -2\n"),
        "{output}"
    );
    let web = get(&space, "web").await;
    assert_eq!(web.spec.approval.plan.as_deref(), Some("0123"));
    let user = space
        .server
        .kubectl(&["auth", "whoami", "-o=jsonpath={.status.userInfo.username}"]);
    assert_eq!(web.spec.approval.by, Some(user.unwrap()));
    let manager = web
        .managed_fields()
        .iter()
        .find(|entry| alustan_core::model::facts::sets_approval(entry));
    assert_eq!(manager.unwrap().manager.as_deref(), Some("alice"));
}

#[tokio::test]
async fn approve_is_refused_without_a_pending_plan() {
    let space = Space::new().await;
    apply_as_applied(&space, "web").await;
    let plan = run(&space, "plan web").await.success();
    assert!(
        plan.contains("waits for approval; current state: Success (Applied)"),
        "{plan}"
    );
    let why = run(&space, "approve web 0123").await.failure();
    assert!(
        why.contains("waits for approval; current state: Success (Applied)"),
        "{why}"
    );
    assert_eq!(get(&space, "web").await.spec.approval.plan, None);
}

#[tokio::test]
async fn discard_names_the_pending_plan() {
    let space = Space::new().await;
    apply(&space, &resource("web"), awaiting("0123")).await;
    let discarded = async || {
        get(&space, "web")
            .await
            .annotations()
            .get(DISCARD_PLAN)
            .cloned()
    };
    let why = run(&space, "discard web 4567").await.failure();
    assert!(why.contains("the pending plan is 0123"), "{why}");
    assert_eq!(discarded().await, None);
    let printed = run(&space, "discard web").await.success();
    for part in [
        format!("plan 0123 of {}/web: +0 ~1 -2", space.namespace),
        format!("kubectl alustan reconcile web -n {}", space.namespace),
    ] {
        assert!(printed.contains(&part), "no {part:?} in {printed}");
    }
    assert_eq!(discarded().await.as_deref(), Some("0123"));
}

#[tokio::test]
async fn cancel_names_the_active_run() {
    let space = Space::new().await;
    apply_as_applied(&space, "web").await;
    let why = run(&space, "cancel web").await.failure();
    assert!(
        why.contains("no run of ") && why.contains("is active; current state: Success (Applied)"),
        "{why}"
    );
    let ours = json!({NAME: "web", COMPONENT: Component::Run.as_str()});
    for name in ["web-plan-6", "web-drift-7"] {
        space
            .create::<Job>(json!({
                "metadata": {"name": name, "labels": ours},
                "spec": {"template": {"spec": {
                    "restartPolicy": "Never", "containers": [{"name": "terraform", "image": "i"}],
                }}},
            }))
            .await;
    }
    let cancelled = async || {
        get(&space, "web")
            .await
            .annotations()
            .get(CANCEL_RUN)
            .cloned()
    };
    let printed = run(&space, "cancel web").await.success();
    let wanted = format!("cancellation of run 7 of {}/web requested", space.namespace);
    assert!(printed.contains(&wanted), "{printed}");
    assert_eq!(cancelled().await.as_deref(), Some("7"));
    run(&space, "cancel web 6").await.success();
    assert_eq!(cancelled().await.as_deref(), Some("6"));
}

/// Returns a status with a run that created a speculative plan for the request `request`.
fn planned(request: &str, result: &str, plan: Option<&str>) -> Value {
    let mut status = status("Planned", "True", "ChangesPlanned");
    let failure = (result == "Failed").then_some("PlanFailed");
    status["runs"] = json!([{
        "number": 7, "kind": "drift", "trigger": format!("plan requested {request}"), "result": result,
        "plan": plan, "reason": failure, "error": failure.map(|_| "Error: invalid argument"),
        "seconds": 3, "job": "web-drift-7",
    }]);
    status["plan"] = json!({"summary": "+1 ~0 -0", "add": 1, "change": 0, "destroy": 0});
    status
}

/// Runs `plan web --now --wait`, and writes the status with the result of the requested plan, as the operator does.
async fn plan_now(space: &Space, result: &str, plan: Option<&str>) -> CommandOutput {
    let before = get(space, "web").await.annotations().get(PLAN_AT).cloned();
    let operator = async {
        let mut requested = before.clone();
        while requested == before {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            requested = get(space, "web").await.annotations().get(PLAN_AT).cloned();
        }
        let request = requested.unwrap();
        apply(space, &resource("web"), planned(&request, result, plan)).await;
    };
    let (output, ()) = tokio::join!(run(space, "plan web --now --wait --timeout 60s"), operator);
    output
}

#[tokio::test]
async fn plan_now_waits_for_its_plan_and_prints_it() {
    let space = Space::new().await;
    apply_as_applied(&space, "web").await;
    let text = json!({
        "plan.txt": "of another plan", "id": "0123",
        "speculative-plan.txt": "+ null_resource.a\n", "speculative-run": "7",
    });
    create_secret(&space, &names::plan("web"), text).await;
    let printed = plan_now(&space, "Changes", Some("+1 ~0 -0"))
        .await
        .success();
    let wanted = format!(
        "+ null_resource.a\n\nthe plan of {}/web (run 7) has changes, which are not applied: +1 ~0 -0\n",
        space.namespace
    );
    assert_eq!(printed, wanted);
    let printed = plan_now(&space, "NoChanges", None).await.success();
    assert!(printed.ends_with("(run 7) has no changes\n"), "{printed}");
    let why = plan_now(&space, "Failed", None).await.failure();
    assert!(
        why.contains("failed (PlanFailed): Error: invalid argument"),
        "{why}"
    );
    let web = get(&space, "web").await;
    assert_eq!(web.annotations().get(RECONCILE_AT), None);
}

#[tokio::test]
async fn plan_now_is_refused_for_a_suspended_resource() {
    let space = Space::new().await;
    let suspended = with(resource("web"), "/suspend", Some(json!(true)));
    apply(&space, &suspended, status("Success", "True", "Suspended")).await;
    let why = run(&space, "plan web --now").await.failure();
    assert!(
        why.contains("it is suspended; to resume it: kubectl alustan resume web"),
        "{why}"
    );
    assert_eq!(get(&space, "web").await.annotations().get(PLAN_AT), None);
}

#[tokio::test]
async fn plan_of_a_plan_only_resource_is_its_last_plan() {
    let space = Space::new().await;
    let plan_only = with(resource("web"), "/mode", Some(json!("PlanOnly")));
    apply(
        &space,
        &plan_only,
        planned("now", "Changes", Some("+1 ~0 -0")),
    )
    .await;
    let output = run(&space, "plan web").await;
    assert!(
        output
            .stderr
            .contains("the text of the plan of run 7 is not stored"),
        "{output:?}"
    );
    let text = json!({"speculative-plan.txt": "+ null_resource.a\n", "speculative-run": "7"});
    create_secret(&space, &names::plan("web"), text).await;
    let printed = run(&space, "plan web").await.success();
    assert!(printed.starts_with("+ null_resource.a\n"), "{printed}");
    let why = run(&space, "approve web").await.failure();
    assert!(
        why.contains("no plan of ") && why.contains("Planned (ChangesPlanned)"),
        "{why}"
    );
}

#[tokio::test]
async fn reconcile_selects_resources_by_reason() {
    let space = Space::new().await;
    for (name, reason) in [("a", "PlanFailed"), ("b", "Applied"), ("c", "PlanFailed")] {
        apply(&space, &resource(name), status("Stalled", "False", reason)).await;
    }
    let output = run(&space, "reconcile --all --reason=PlanFailed")
        .await
        .success();
    let wanted = ["a", "c"].map(|name| format!("{}/{name} reconcile requested\n", space.namespace));
    assert_eq!(output, wanted.concat());
    for (name, requested) in [("a", true), ("b", false), ("c", true)] {
        let tf = get(&space, name).await;
        let at = tf.annotations().get(RECONCILE_AT);
        assert_eq!(at.is_some(), requested, "{name}: {at:?}");
        if let Some(at) = at {
            at.parse::<k8s_openapi::jiff::Timestamp>().unwrap();
        }
    }
    let output = run(&space, "reconcile --reason=Nothing").await;
    assert!(output.stderr.contains("has reason Nothing"), "{output:?}");
    assert_eq!(output.success(), "");
}

#[tokio::test]
async fn reconcile_asks_for_an_apply_only_with_its_flag() {
    let space = Space::new().await;
    space.apply(&resource("web")).await.unwrap();
    let requested_at = async || {
        let web = get(&space, "web").await;
        [RECONCILE_AT, APPLY_AT].map(|name| web.annotations().get(name).cloned())
    };
    run(&space, "reconcile web --apply").await.success();
    let [first, apply] = requested_at().await;
    assert!(first.is_some() && first == apply, "{first:?}, {apply:?}");
    run(&space, "reconcile web").await.success();
    let [second, apply] = requested_at().await;
    assert!(second.is_some() && second != first, "{second:?}");
    assert_eq!(apply, None);
}

#[tokio::test]
async fn resources_are_suspended_and_resumed() {
    let space = Space::new().await;
    for name in ["a", "b"] {
        space.apply(&resource(name)).await.unwrap();
    }
    let suspended = async || {
        let all = [get(&space, "a").await, get(&space, "b").await];
        all.map(|tf| tf.spec.suspend)
    };
    run(&space, "suspend a").await.success();
    assert_eq!(suspended().await, [true, false]);
    run(&space, "suspend --all").await.success();
    assert_eq!(suspended().await, [true, true]);
    run(&space, "resume b").await.success();
    assert_eq!(suspended().await, [true, false]);
    run(&space, "resume a gone").await.failure();
    assert_eq!(
        suspended().await,
        [true, false],
        "a wrong name leaves all as they are"
    );
}

#[tokio::test]
async fn sensitive_outputs_are_shown_only_on_request() {
    let space = Space::new().await;
    apply_as_running(&space, "Planning").await;
    let why = run(&space, "outputs web").await.failure();
    assert!(why.contains("no outputs"), "{why}");

    let mut applied = status("Success", "True", "Applied");
    applied["outputs"] = json!({"secretName": "web-outputs"});
    apply(&space, &resource("web"), applied).await;
    let why = run(&space, "outputs web").await.failure();
    assert!(
        why.contains("does not exist") && why.contains("kubectl alustan reconcile web"),
        "{why}"
    );

    let outputs = json!({"host": "a.test", "password": "hush"});
    create_secret(&space, "web-outputs", outputs).await;
    let sensitive = json!({"metadata": {"annotations": {labels::SENSITIVE_OUTPUTS: "password"}}});
    let (api, parameters) = (space.api::<Secret>(), PatchParams::default());
    api.patch("web-outputs", &parameters, &Patch::Merge(sensitive))
        .await
        .unwrap();
    let all = run(&space, "outputs web").await.success();
    assert!(
        all.contains("host       a.test") && all.contains("password   (sensitive)"),
        "{all}"
    );
    let json = run(&space, "outputs web -o json --show").await.success();
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json, json!({"host": "a.test", "password": "hush"}));
    assert_eq!(run(&space, "outputs web host").await.success(), "a.test");
    let why = run(&space, "outputs web hots").await.failure();
    assert!(
        why.contains("no output hots") && why.contains("host, password"),
        "{why}"
    );
}

#[tokio::test]
async fn resources_lists_the_objects_in_the_run_report() {
    let space = Space::new().await;
    apply_as_applied(&space, "web").await;
    let why = run(&space, "resources web").await.failure();
    assert!(why.contains("no run has listed the objects of"), "{why}");
    // One object of two, gzipped.
    let list = "H4sIAAAAAAACAxXKsQ6AIAyE4Xe5mTi4mPRVjAPSDjoAKcXEEN7dun3/5Qa0Z9AWkErPBloDzKcUTRjklIBy3pKsgfaByKzS3LAlws9vlT+cVctzsahnxTzmByl7kI1cAAAA";
    let secret = json!({"metadata": {"name": "web-report"}, "data": {"inventory": list}});
    space.create::<Secret>(secret).await;
    let output = run(&space, "resources web").await;
    let CommandOutput { stderr, .. } = &output;
    assert!(
        stderr.contains("1 of 2 objects, as of run 7") && stderr.contains("state pull web"),
        "{stderr}"
    );
    assert_eq!(output.success(), "ADDRESS   TYPE   MARKS\nt.a       t\n");
    let names = run(&space, "resources web -o name").await.success();
    assert_eq!(names, "t.a\n");

    // A user who may read the resource, but not the Secret.
    let role = json!({"metadata": {"name": "reads"}, "rules": [
        {"apiGroups": ["alustan.io"], "resources": ["terraforms"], "verbs": ["get"]},
    ]});
    space.create::<Role>(role).await;
    let binding = json!({
        "metadata": {"name": "reads"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reads"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "reader"}],
    });
    space.create::<RoleBinding>(binding).await;
    let mut command = command(&space, "resources web");
    let reader = space.server.kubeconfig_file_of("reader");
    let why = CommandOutput::of(command.env("KUBECONFIG", reader).output().unwrap()).failure();
    assert!(
        why.contains("web-report") && why.contains("\"reader\""),
        "{why}"
    );
}

#[tokio::test]
async fn wait_ends_when_a_resource_is_ready_or_stalled() {
    let space = Space::new().await;
    apply_as_running(&space, "Planning").await;
    let waiting = tokio::process::Command::from(command(&space, "wait web --timeout 60s"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    apply_as_running(&space, "Applying").await;
    apply_as_applied(&space, "web").await;
    let output = CommandOutput::of(waiting.wait_with_output().await.unwrap()).success();
    let last = output.lines().last().unwrap();
    assert!(
        last.ends_with("Success  Applied  no run yet  Applied it is"),
        "{output}"
    );

    let changed = with(resource("web"), "/suspend", Some(json!(true)));
    space.apply(&changed).await.unwrap();
    let why = run(&space, "wait web --timeout 1s").await.failure();
    assert!(
        why.contains("is not ready after 1s"),
        "it is ready for the spec before: {why}"
    );

    apply(&space, &changed, status("Stalled", "False", "PlanFailed")).await;
    let why = run(&space, "wait web").await.failure();
    assert!(
        why.ends_with("/web is stalled: PlanFailed it is\n"),
        "{why}"
    );
}
