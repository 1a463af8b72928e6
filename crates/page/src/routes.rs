//! Routes of the page.

use std::collections::BTreeSet;
use std::sync::Arc;

use alustan_api::{ObjectKey, Terraform, TerraformRun, TerraformStatus};
use axum::Router;
use axum::body::Body;
use axum::extract::{Form, FromRequest, Path, Query, Request, State as Shared};
use axum::http::header::{CONTENT_TYPE, LOCATION, SET_COOKIE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::middleware::from_fn_with_state;
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use futures::io::AsyncReadExt as _;
use futures::stream;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use serde::Deserialize;

use crate::access::Viewer;
use crate::actions::{self, Action, ActionForm};
use crate::error::PageError;
use crate::html::{self, Frame, Nav};
use crate::live::{self, Scope};
use crate::log::{self, LogSource, Position};
use crate::page::Page;
use crate::request::{AuthenticatedRequest, VisibleRows, render_errors};
use crate::row::{Row, dependencies};
use crate::sign_in::{MAX_FORM_BYTES, SignIn};
use crate::view::{self, ListQuery, LogPanel, ResourceInput, RunInput};
use crate::{assets, guard, objects};

/// Maximum size of the body of a request, in bytes: a form with a token.
const MAX_BODY_BYTES: usize = 64 * 1024;

/// Size of the reads of a downloaded log, in bytes.
const READ_BYTES: usize = 64 * 1024;

/// Returns the routes of `page`.
pub fn router(page: Page) -> Router {
    let resource = "/ns/{namespace}/tf/{name}";
    Router::new()
        .route("/", get(list))
        .route("/approvals", get(approvals))
        .route("/drift", get(drift))
        .route("/live", get(list_changes))
        .route("/ns/{namespace}/graph", get(graph))
        .route("/ns/{namespace}/live", get(namespace_changes))
        .route(resource, get(resource_page))
        .route(&format!("{resource}/live"), get(resource_changes))
        .route(&format!("{resource}/runs/{{number}}"), get(run_page))
        .route(&format!("{resource}/runs/{{number}}/log"), get(raw_log))
        .route(&format!("{resource}/runs/{{number}}/live"), get(live_log))
        .route(&format!("{resource}/{{action}}"), post(act))
        .route("/open", get(open))
        .route("/sign-in", get(sign_in_form).post(sign_in))
        .route("/sign-out", post(sign_out))
        .route("/assets/{file}", get(asset))
        .fallback(|| async { no_page() })
        .layer(from_fn_with_state(page.clone(), render_errors))
        .layer(axum::extract::DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(page)
}

/// Namespace and name in the path.
#[derive(Deserialize)]
struct ResourcePath {
    namespace: String,
    name: String,
}

impl ResourcePath {
    /// Returns the key. The API server checks names only in writes: a name with a slash would address another object.
    fn key(self) -> Result<ObjectKey, PageError> {
        check_name(&self.namespace)?;
        check_name(&self.name)?;
        Ok(ObjectKey::new(self.namespace, self.name))
    }
}

/// Namespace, name and number of a run in the path.
#[derive(Deserialize)]
struct RunPath {
    namespace: String,
    name: String,
    number: i64,
}

impl RunPath {
    fn key(self) -> Result<(ObjectKey, i64), PageError> {
        let Self {
            namespace,
            name,
            number,
        } = self;
        Ok((ResourcePath { namespace, name }.key()?, number))
    }
}

/// Fails unless `name` is an RFC 1123 subdomain.
fn check_name(name: &str) -> Result<(), PageError> {
    let is_valid = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.')
    };
    if !name.is_empty() && name.len() <= 253 && name.bytes().all(is_valid) && !name.starts_with('.')
    {
        return Ok(());
    }
    Err(PageError::NotFound(
        "the path contains an invalid name".to_owned(),
    ))
}

fn path(key: &ObjectKey) -> String {
    view::path::resource(&key.namespace, &key.name)
}

/// Returns the URL of the stream of changes after `tf`.
fn changes_stream(key: &ObjectKey, tf: &Terraform) -> String {
    let seen = tf.resource_version().unwrap_or_default();
    format!("{}/live?seen={seen}", path(key))
}

async fn list(
    request: AuthenticatedRequest,
    Query(query): Query<ListQuery>,
) -> Result<Response, PageError> {
    let VisibleRows { rows, stream } = request.rows().await?;
    let view = view::list(&rows, &query, Timestamp::now());
    let frame = request.frame("Resources", Nav::Resources, Some(stream));
    Ok(request.respond(&frame, &view, html::list))
}

async fn approvals(request: AuthenticatedRequest) -> Result<Response, PageError> {
    let VisibleRows { rows, stream } = request.rows().await?;
    let view = view::approvals(&rows, Timestamp::now());
    let frame = request.frame("Approvals", Nav::Approvals, Some(stream));
    Ok(request.respond(&frame, &view, html::approvals))
}

async fn drift(request: AuthenticatedRequest) -> Result<Response, PageError> {
    let VisibleRows { rows, stream } = request.rows().await?;
    let view = view::drift(&rows, Timestamp::now());
    let frame = request.frame("Drift", Nav::Drift, Some(stream));
    Ok(request.respond(&frame, &view, html::drift))
}

async fn graph(
    request: AuthenticatedRequest,
    Path(namespace): Path<String>,
) -> Result<Response, PageError> {
    check_name(&namespace)?;
    let _permit = request.large_read().await;
    let overview = &request.page.0.overview;
    // Before the list: the stream announces a change during the list.
    let seen = overview.version(&[namespace.clone()].into());
    let (resources, is_truncated) = objects::terraforms(request.viewer(), &namespace).await?;
    let external: BTreeSet<ObjectKey> = resources
        .iter()
        .flat_map(dependencies)
        .filter(|key| key.namespace != namespace)
        .collect();
    let namespaces = external.iter().map(|key| key.namespace.clone()).collect();
    let visible = request.viewer().listable(namespaces).await?;
    let external = external
        .into_iter()
        .filter(|key| visible.contains(&key.namespace))
        .filter_map(|key| Some((key.clone(), overview.row(&key)?.state)))
        .collect();
    let view = view::graph(&namespace, &resources, &external, is_truncated);
    let title = format!("Dependencies in {namespace}");
    let stream = format!("/ns/{namespace}/live?seen={seen}");
    let frame = request.frame(&title, Nav::Other, Some(stream));
    Ok(request.respond(&frame, &view, html::graph))
}

/// Query of the page of a resource.
#[derive(Deserialize)]
struct ResourceQuery {
    /// Path of the action that redirected to the page.
    #[serde(default)]
    done: String,
}

async fn resource_page(
    request: AuthenticatedRequest,
    Path(path_parts): Path<ResourcePath>,
    Query(ResourceQuery { done }): Query<ResourceQuery>,
) -> Result<Response, PageError> {
    let key = path_parts.key()?;
    let _permit = request.large_read().await;
    let viewer = request.viewer();
    let tf = match objects::terraform(viewer, &key).await {
        Err(error @ PageError::NotFound(_)) => return deleted(&request, key, error).await,
        other => other?,
    };
    let uid = tf.uid().unwrap_or_default();
    let (runs, runs_error) = match objects::runs(viewer, &key, Some(&uid)).await {
        Ok(runs) => (runs, None),
        Err(error @ PageError::Forbidden(_)) => (Vec::new(), Some(error.to_string())),
        Err(error) => return Err(error),
    };
    let outputs = objects::outputs(viewer, &key, &tf).await;
    let permissions = viewer.permissions(&key.namespace, &key.name).await?;
    let (dependencies, dependents) = neighbours(&request, &tf).await?;
    let view = view::resource(ResourceInput {
        tf: &tf,
        runs: &runs,
        runs_error: runs_error.as_deref(),
        dependents: &dependents,
        dependencies: &dependencies,
        outputs: outputs.as_ref(),
        permissions: &permissions,
        now: Timestamp::now(),
    });
    let stream = changes_stream(&key, &tf);
    let title = key.to_string();
    // An update shows a later state than the one after the action.
    let done = Action::of_path(&done).filter(|_| !request.is_update);
    let frame = Frame {
        notice: done.map(Action::notice),
        ..request.frame(&title, Nav::Other, Some(stream))
    };
    Ok(request.respond(&frame, &view, html::resource))
}

/// Responds with the runs of the deleted resource `key`, or with `not_found` if there are none.
async fn deleted(
    request: &AuthenticatedRequest,
    key: ObjectKey,
    not_found: PageError,
) -> Result<Response, PageError> {
    let runs = objects::runs(request.viewer(), &key, None).await;
    let runs = runs.unwrap_or_default();
    if runs.is_empty() {
        return Err(not_found);
    }
    let title = key.to_string();
    let view = view::deleted(key, &runs, Timestamp::now());
    let frame = request.frame(&title, Nav::Other, None);
    Ok(request.respond(&frame, &view, html::deleted))
}

type Dependencies = Vec<(ObjectKey, Option<Arc<Row>>)>;

/// Returns the dependencies of `tf`, with their summaries, and the dependents: only summaries in namespaces in which the user may list resources.
async fn neighbours(
    request: &AuthenticatedRequest,
    tf: &Terraform,
) -> Result<(Dependencies, Vec<Arc<Row>>), PageError> {
    let overview = &request.page.0.overview;
    let dependents = overview.dependents(&ObjectKey::of(tf));
    let dependencies = dependencies(tf);
    let namespaces = dependents
        .iter()
        .map(|row| row.namespace.clone())
        .chain(dependencies.iter().map(|key| key.namespace.clone()))
        .collect();
    let visible = request.viewer().listable(namespaces).await?;
    let dependencies = dependencies
        .into_iter()
        .map(|key| {
            let row = overview
                .row(&key)
                .filter(|row| visible.contains(&row.namespace));
            (key, row)
        })
        .collect();
    let dependents = dependents
        .into_iter()
        .filter(|row| visible.contains(&row.namespace))
        .collect();
    Ok((dependencies, dependents))
}

/// Objects of a run that the user may read.
struct RunObjects {
    /// The resource. `None`: it was deleted; records remain.
    tf: Option<Terraform>,
    /// Record of the run.
    run: Option<TerraformRun>,
    /// Error if the user may not read records. The log of the pod does not require this permission.
    refused: Option<PageError>,
}

impl RunObjects {
    async fn read(viewer: &Viewer, key: &ObjectKey, number: i64) -> Result<Self, PageError> {
        let tf = match objects::terraform(viewer, key).await {
            Ok(tf) => Some(tf),
            Err(PageError::NotFound(_)) => None,
            Err(error) => return Err(error),
        };
        let uid = tf.as_ref().and_then(Terraform::uid);
        let (run, refused) = match objects::run(viewer, key, uid.as_deref(), number).await {
            Ok(run) => (run, None),
            Err(error @ PageError::Forbidden(_)) if tf.is_some() => (None, Some(error)),
            Err(error) => return Err(error),
        };
        Ok(Self { tf, run, refused })
    }
}

async fn run_page(
    request: AuthenticatedRequest,
    Path(path_parts): Path<RunPath>,
) -> Result<Response, PageError> {
    let (key, number) = path_parts.key()?;
    let _permit = request.large_read().await;
    let viewer = request.viewer();
    let RunObjects { tf, run, refused } = RunObjects::read(viewer, &key, number).await?;
    let status = tf.as_ref().and_then(|tf| tf.status.as_ref());
    let entry = status.and_then(|status| status.runs.iter().find(|run| run.number == number));
    let is_recorded = run.is_some() || entry.is_some();
    let is_active = !is_recorded && tf.as_ref().and_then(view::active_run) == Some(number);
    if !is_recorded && !is_active {
        return Err(refused.unwrap_or_else(|| {
            PageError::NotFound(format!(
                "run {number} of {key} has no record, and is not active"
            ))
        }));
    }
    let found = log::find(viewer, &key, number, run.as_ref()).await?;
    let is_live = match &found {
        LogSource::Pod(pod) => pod.is_running,
        LogSource::NotStarted(_) => is_active,
        LogSource::Stored(_) | LogSource::Missing(_) => false,
    };
    let log = log_panel(found, &view::path::run(&key.namespace, &key.name, number));
    let recorded = run
        .as_ref()
        .and_then(|run| run.status.as_ref()?.plan_id.as_deref());
    let plan_text = match recorded.filter(|id| tf.as_ref().is_some_and(|tf| is_pending(tf, id))) {
        Some(id) => objects::plan_text(viewer, &key, id).await,
        None => None,
    };
    let permissions = viewer.permissions(&key.namespace, &key.name).await?;
    let view = view::run(RunInput {
        key: key.clone(),
        number,
        run: run.as_ref(),
        status: entry,
        tf: tf.as_ref(),
        is_active,
        permissions: &permissions,
        plan_text: plan_text.as_deref(),
        log,
        now: Timestamp::now(),
    });
    let stream = tf.as_ref().filter(|_| !is_live);
    let stream = stream.map(|tf| changes_stream(&key, tf));
    let title = format!("{key}, run {number}");
    let frame = request.frame(&title, Nav::Other, stream);
    Ok(request.respond(&frame, &view, html::run))
}

/// Returns the panel for the log in `source`. `run`: path of the page of the run.
fn log_panel(source: LogSource, run: &str) -> LogPanel {
    let live = |waiting| LogPanel::Live {
        stream: format!("{run}/live"),
        raw: format!("{run}/log"),
        waiting,
    };
    match source {
        LogSource::Pod(_) => live(None),
        LogSource::NotStarted(reason) => live(Some(reason)),
        LogSource::Stored(log) => LogPanel::Stored {
            head: log.head,
            omitted_bytes: log.omitted_bytes,
            tail: log.tail,
        },
        LogSource::Missing(reason) => LogPanel::Missing { reason },
    }
}

/// Downloads the log of a run as text.
async fn raw_log(
    request: AuthenticatedRequest,
    Path(path): Path<RunPath>,
) -> Result<Response, PageError> {
    const TEXT: [(HeaderName, &str); 1] = [(CONTENT_TYPE, "text/plain; charset=utf-8")];
    let (key, number) = path.key()?;
    let viewer = request.viewer();
    let RunObjects { run, .. } = RunObjects::read(viewer, &key, number).await?;
    match log::find(viewer, &key, number, run.as_ref()).await? {
        LogSource::Pod(pod) => {
            let slot = request.page.0.limits.open_stream(viewer.user())?;
            let log = Box::pin(pod.bytes().await?);
            let parts = stream::try_unfold((log, slot), |(mut log, slot)| async move {
                let mut buffer = vec![0; READ_BYTES];
                let read = log.read(&mut buffer).await?;
                buffer.truncate(read);
                Ok::<_, std::io::Error>((read > 0).then_some((buffer, (log, slot))))
            });
            Ok((TEXT, Body::from_stream(parts)).into_response())
        }
        LogSource::Stored(log) => Ok((TEXT, log.text()).into_response()),
        LogSource::NotStarted(reason) => Err(PageError::NotFound(format!(
            "the pod of run {number} of {key} has not started: {reason}"
        ))),
        LogSource::Missing(reason) => Err(PageError::NotFound(reason)),
    }
}

/// Query of the stream of a log.
#[derive(Deserialize)]
struct LogQuery {
    /// Position after which the log continues, if the browser does not send header `Last-Event-ID`.
    #[serde(default)]
    after: String,
}

/// Query of a stream of changes.
#[derive(Deserialize)]
struct ChangesQuery {
    /// Version of the resources that the page shows.
    #[serde(default)]
    seen: String,
}

async fn live_log(
    request: AuthenticatedRequest,
    Path(path): Path<RunPath>,
    Query(LogQuery { after }): Query<LogQuery>,
    headers: HeaderMap,
) -> Result<Response, PageError> {
    let (key, number) = path.key()?;
    let position = Position::parse(last_event_id(&headers).unwrap_or(&after));
    let slot = request.page.0.limits.open_stream(request.viewer().user())?;
    Ok(live::run_log(
        slot,
        request.viewer().clone(),
        key,
        number,
        position,
    ))
}

/// Returns the id of the last event that the browser received, if it reconnects.
fn last_event_id(headers: &HeaderMap) -> Option<&str> {
    headers.get("last-event-id")?.to_str().ok()
}

async fn list_changes(
    request: AuthenticatedRequest,
    query: Query<ChangesQuery>,
    headers: HeaderMap,
) -> Result<Response, PageError> {
    changes(&request, Scope::All, query, &headers)
}

async fn namespace_changes(
    request: AuthenticatedRequest,
    Path(namespace): Path<String>,
    query: Query<ChangesQuery>,
    headers: HeaderMap,
) -> Result<Response, PageError> {
    check_name(&namespace)?;
    changes(&request, Scope::Namespace(namespace), query, &headers)
}

async fn resource_changes(
    request: AuthenticatedRequest,
    Path(path): Path<ResourcePath>,
    query: Query<ChangesQuery>,
    headers: HeaderMap,
) -> Result<Response, PageError> {
    changes(&request, Scope::Resource(path.key()?), query, &headers)
}

fn changes(
    request: &AuthenticatedRequest,
    scope: Scope,
    Query(ChangesQuery { seen }): Query<ChangesQuery>,
    headers: &HeaderMap,
) -> Result<Response, PageError> {
    let viewer = request.viewer();
    let slot = request.page.0.limits.open_stream(viewer.user())?;
    let seen = last_event_id(headers).map_or(seen, str::to_owned);
    let overview = request.page.0.overview.clone();
    Ok(live::changes(slot, viewer.clone(), overview, scope, seen))
}

/// Namespace, name and action in the path.
#[derive(Deserialize)]
struct ActionPath {
    namespace: String,
    name: String,
    action: String,
}

/// Executes the action of a button, and redirects to the page of the resource.
async fn act(
    authenticated: AuthenticatedRequest,
    Path(ActionPath {
        namespace,
        name,
        action,
    }): Path<ActionPath>,
    request: Request,
) -> Result<Response, PageError> {
    let key = ResourcePath { namespace, name }.key()?;
    let action =
        Action::of_path(&action).ok_or_else(|| PageError::NotFound("no such action".to_owned()))?;
    let (_, form) = checked_form(&authenticated, request).await?;
    let viewer = authenticated.viewer();
    let writer = viewer
        .writer()
        .map_err(|reason| PageError::Forbidden(reason.to_owned()))?;
    let change = actions::patch(action, &form, viewer.user(), Timestamp::now())
        .map_err(|error| PageError::Invalid(error.to_owned()))?;
    check_target(action, &form, &objects::terraform(viewer, &key).await?)?;
    objects::change(writer, &key, &change).await?;
    tracing::info!(user = viewer.user(), resource = %key, action = action.path(), "action of a user");
    let location = format!("{}?done={}", path(&key), action.path());
    Ok((StatusCode::SEE_OTHER, [(LOCATION, location)]).into_response())
}

/// Whether the plan `id` of `tf` waits for approval.
fn is_pending(tf: &Terraform, id: &str) -> bool {
    let pending = tf.status.as_ref().and_then(TerraformStatus::pending_plan);
    pending.is_some_and(|(_, pending)| pending == id)
}

/// Fails unless the plan or the run in the form is the current one. The operator also ignores an action on another one, but its annotation would stay.
fn check_target(action: Action, form: &ActionForm, tf: &Terraform) -> Result<(), PageError> {
    let key = ObjectKey::of(tf);
    let outdated = match action {
        Action::Approve | Action::Discard if !is_pending(tf, &form.plan) => {
            format!("plan {} no longer waits for approval", form.plan)
        }
        Action::Cancel if view::active_run(tf) != form.run => {
            format!("run {} is not active", form.run.unwrap_or_default())
        }
        _ => return Ok(()),
    };
    Err(PageError::Conflict(format!(
        "{outdated}: go back to {key} and read its current state"
    )))
}

/// Query of the URL that signs in.
#[derive(Deserialize)]
struct OpenQuery {
    token: String,
}

async fn open(
    Shared(page): Shared<Page>,
    Query(OpenQuery { token }): Query<OpenQuery>,
) -> Result<Response, PageError> {
    let SignIn::Local(local) = &page.0.sign_in else {
        return Err(no_page());
    };
    let cookie = local.open(&token)?;
    Ok((
        StatusCode::SEE_OTHER,
        [(LOCATION, "/")],
        [(SET_COOKIE, cookie)],
    )
        .into_response())
}

fn no_page() -> PageError {
    PageError::NotFound("no such page".to_owned())
}

async fn sign_in_form(Shared(page): Shared<Page>) -> Result<Response, PageError> {
    page.0.sign_in.token().ok_or_else(no_page)?;
    Ok(Html(html::sign_in(None, "/").into_string()).into_response())
}

/// Signs in with the token in the form.
async fn sign_in(Shared(page): Shared<Page>, request: Request) -> Result<Response, PageError> {
    let token = page.0.sign_in.token().ok_or_else(no_page)?;
    let (head, body) = request.into_parts();
    guard::check_origin(&head)?;
    let form = axum::body::to_bytes(body, MAX_FORM_BYTES)
        .await
        .map_err(|_| {
            PageError::Invalid(format!("the form has more than {MAX_FORM_BYTES} bytes"))
        })?;
    let mut response = token.submit(&form).await?;
    let to = form_urlencoded::parse(&form).find(|(name, _)| name == "to");
    if let Some(to) = to.and_then(|(_, to)| local_path(&to)) {
        response.headers_mut().insert(LOCATION, to);
    }
    Ok(response)
}

/// Returns `to` if it is a path of this page, and not of another host.
fn local_path(to: &str) -> Option<HeaderValue> {
    let is_local = to.starts_with('/') && !to.starts_with("//") && !to.contains('\\');
    HeaderValue::from_str(to).ok().filter(|_| is_local)
}

/// Removes the cookie of the session.
async fn sign_out(
    authenticated: AuthenticatedRequest,
    request: Request,
) -> Result<Response, PageError> {
    let token = authenticated.page.0.sign_in.token().ok_or_else(no_page)?;
    let (head, _) = checked_form(&authenticated, request).await?;
    token.sign_out_of(&head)
}

/// Returns head and form of a request that changes something. Refuses requests of other sites and sessions.
async fn checked_form(
    authenticated: &AuthenticatedRequest,
    request: Request,
) -> Result<(Parts, ActionForm), PageError> {
    let (head, body) = request.into_parts();
    guard::check_origin(&head)?;
    let request = Request::from_parts(head.clone(), body);
    let Form(form) = Form::<ActionForm>::from_request(request, &())
        .await
        .map_err(|_| PageError::Invalid("the form is invalid: reload the page".to_owned()))?;
    guard::check_csrf_token(&authenticated.session.id, &form.csrf)?;
    Ok((head, form))
}

async fn asset(Path(file): Path<String>) -> Result<Response, PageError> {
    assets::file(&file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    #[rstest]
    #[case::pending("0123", true, true)]
    #[case::another_plan("4567", true, false)]
    #[case::no_longer_pending("0123", false, false)]
    fn approval_of_another_plan_is_refused(
        #[case] id: &str,
        #[case] pending: bool,
        #[case] allowed: bool,
    ) {
        let tf: Terraform = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "team"},
            "spec": {"containerRegistry": {"imageName": "registry.test/a"}},
            "status": {"plan": {
                "id": "0123", "pendingApproval": pending, "summary": "+1 ~0 -0", "add": 1, "change": 0, "destroy": 0,
            }},
        }))
        .unwrap();
        let form = ActionForm {
            plan: id.to_owned(),
            run: Some(7),
            ..ActionForm::default()
        };
        for action in [Action::Approve, Action::Discard] {
            assert_eq!(check_target(action, &form, &tf).is_ok(), allowed);
        }
        assert!(check_target(Action::Cancel, &form, &tf).is_err());
        assert!(check_target(Action::Suspend, &form, &tf).is_ok());
    }

    #[rstest]
    #[case("/ns/team/tf/web?done=approve", true)]
    #[case("//evil.test", false)]
    #[case("/\\evil.test", false)]
    #[case("https://evil.test", false)]
    #[case("/a\nset-cookie: b", false)]
    fn sign_in_leads_only_to_the_page_itself(#[case] to: &str, #[case] allowed: bool) {
        assert_eq!(local_path(to).is_some(), allowed);
    }

    #[rstest]
    #[case("web", true)]
    #[case("a.b-c0", true)]
    #[case("", false)]
    #[case("..", false)]
    #[case("a/../b", false)]
    #[case("Web", false)]
    #[case("a?b", false)]
    fn path_with_another_object_is_refused(#[case] name: &str, #[case] allowed: bool) {
        assert_eq!(check_name(name).is_ok(), allowed);
    }
}
