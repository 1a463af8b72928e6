//! Static files of the page. htmx 2.0.11 and its SSE extension 2.2.4 (licence 0BSD) are unchanged copies of the npm packages `htmx.org` and
//! `htmx-ext-sse`.

use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};

use crate::error::PageError;

/// Maximum age of static files in the cache of the browser.
const CACHE: &str = "public, max-age=300";

/// Responds with the file `name`.
///
/// # Errors
/// [`PageError::NotFound`] for an unknown name.
pub(crate) fn file(name: &str) -> Result<Response, PageError> {
    const JAVASCRIPT: &str = "text/javascript; charset=utf-8";
    let (kind, content): (_, &'static [u8]) = match name {
        "page.css" => ("text/css; charset=utf-8", include_bytes!("assets/page.css")),
        "page.js" => (JAVASCRIPT, include_bytes!("assets/page.js")),
        "htmx.js" => (JAVASCRIPT, include_bytes!("assets/htmx.js")),
        "htmx-sse.js" => (JAVASCRIPT, include_bytes!("assets/htmx-sse.js")),
        _ => return Err(PageError::NotFound("no such file".to_owned())),
    };
    Ok(([(CONTENT_TYPE, kind), (CACHE_CONTROL, CACHE)], content).into_response())
}
