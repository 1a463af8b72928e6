//! Bodies of HTTP responses with a maximum size.

use reqwest::Response;

/// Returns the rest of the body of `response`. `None` if it has more than `most` bytes.
///
/// # Errors
/// If the connection fails before the end of the body.
pub(crate) async fn read(
    response: &mut Response,
    most: usize,
) -> Result<Option<Vec<u8>>, reqwest::Error> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if body.len() + chunk.len() > most {
            return Ok(None);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Some(body))
}
