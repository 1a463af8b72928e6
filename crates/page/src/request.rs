//! Authenticated requests, and their responses.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRequestParts, Request, State as Shared};
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method};
use axum::middleware::Next;
use axum::response::{Html, IntoResponse, Response};
use maud::Markup;
use serde::Serialize;
use tokio::sync::SemaphorePermit;

use crate::access::Viewer;
use crate::error::PageError;
use crate::guard;
use crate::html::{self, Frame, Nav};
use crate::overview::version;
use crate::page::Page;
use crate::row::Row;
use crate::sign_in::Session;

/// Maximum time that a request for a list waits for the first list of the API server.
const LIST_TIMEOUT: Duration = Duration::from_secs(10);

/// Summaries of the resources that a user may list, sorted by namespace and name.
pub(crate) struct VisibleRows {
    pub(crate) rows: Vec<Arc<Row>>,
    /// URL of the stream of their changes.
    pub(crate) stream: String,
}

/// Responds with the text of the error. A handler does not know the page, so [`render_errors`] replaces the body: the error is in the extensions.
impl IntoResponse for PageError {
    fn into_response(self) -> Response {
        let mut response = (self.status(), self.to_string()).into_response();
        response.extensions_mut().insert(Arc::new(self));
        response
    }
}

/// Checks header `Host`, adds the security headers, and renders errors as HTML or JSON.
pub(crate) async fn render_errors(
    Shared(page): Shared<Page>,
    request: Request,
    next: Next,
) -> Response {
    let is_json = wants_json(request.headers());
    let path = match request.method() {
        &Method::GET => request.uri().path_and_query().map(ToString::to_string),
        _ => None,
    };
    let mut response = match page.0.hosts.check(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    };
    if let Some(error) = response.extensions_mut().remove::<Arc<PageError>>() {
        response = error_response(&page, &error, is_json, path.as_deref().unwrap_or("/"));
    }
    guard::add_headers(response.headers_mut());
    response
}

/// `path`: path of the request, to which the user returns after the sign-in.
fn error_response(page: &Page, error: &PageError, is_json: bool, path: &str) -> Response {
    let (status, text) = (error.status(), error.to_string());
    if is_json {
        let body = serde_json::json!({"error": text, "status": status.as_u16()});
        return (
            status,
            [(CONTENT_TYPE, "application/json")],
            body.to_string(),
        )
            .into_response();
    }
    let title = status.canonical_reason().unwrap_or("Error");
    let is_signed_out = matches!(error, PageError::SignInRequired(_));
    let markup = if is_signed_out && page.0.sign_in.token().is_some() {
        html::sign_in(Some(&text), path)
    } else {
        html::error(status.as_u16(), title, &text)
    };
    (status, Html(markup.into_string())).into_response()
}

fn wants_json(headers: &HeaderMap) -> bool {
    let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok());
    accept.is_some_and(|accept| accept.starts_with("application/json"))
}

/// An authenticated request.
pub(crate) struct AuthenticatedRequest {
    pub(crate) page: Page,
    pub(crate) session: Session,
    csrf: String,
    is_json: bool,
    /// Whether htmx updates an open page.
    pub(crate) is_update: bool,
}

impl FromRequestParts<Page> for AuthenticatedRequest {
    type Rejection = PageError;

    async fn from_request_parts(parts: &mut Parts, page: &Page) -> Result<Self, PageError> {
        let session = page.0.sign_in.session(parts).await?;
        page.0.limits.count(&session.id)?;
        Ok(Self {
            page: page.clone(),
            csrf: guard::csrf_token(&session.id),
            session,
            is_json: wants_json(&parts.headers),
            is_update: parts.headers.contains_key("hx-request"),
        })
    }
}

impl AuthenticatedRequest {
    /// Returns the user.
    pub(crate) fn viewer(&self) -> &Arc<Viewer> {
        &self.session.viewer
    }

    /// Returns the summaries of the resources that the user may list, and the URL of their stream.
    ///
    /// # Errors
    /// If the list of all resources is not complete yet.
    pub(crate) async fn rows(&self) -> Result<VisibleRows, PageError> {
        let overview = &self.page.0.overview;
        if !overview.wait_until_complete(LIST_TIMEOUT).await {
            return Err(PageError::Unavailable(
                "the list of resources is not complete yet: try again".to_owned(),
            ));
        }
        let mut rows = overview.rows();
        let visible = self.viewer().listable(overview.namespaces()).await?;
        rows.retain(|row| visible.contains(&row.namespace));
        // The version of these rows, not of later ones: the stream announces what changed since.
        Ok(VisibleRows {
            stream: format!("/live?seen={}", version(rows.iter())),
            rows,
        })
    }

    /// Waits until few other pages read many or large objects. The permit is released when it is dropped.
    pub(crate) async fn large_read(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        self.page.0.large_reads.acquire().await.ok()
    }

    /// Returns the frame of a page.
    pub(crate) fn frame<'a>(
        &'a self,
        title: &'a str,
        active_nav: Nav,
        stream: Option<String>,
    ) -> Frame<'a> {
        Frame {
            title,
            user: self.viewer().user(),
            csrf: &self.csrf,
            active_nav,
            stream,
            can_sign_out: self.session.can_sign_out,
            notice: None,
        }
    }

    /// Responds with `view`: as JSON, or rendered in `frame`.
    pub(crate) fn respond<V: Serialize>(
        &self,
        frame: &Frame<'_>,
        view: &V,
        render: impl FnOnce(&Frame<'_>, &V) -> Markup,
    ) -> Response {
        if self.is_json {
            return match serde_json::to_string(view) {
                Ok(json) => ([(CONTENT_TYPE, "application/json")], json).into_response(),
                Err(error) => PageError::Invalid(error.to_string()).into_response(),
            };
        }
        Html(render(frame, view).into_string()).into_response()
    }
}
