//! Functions of serde attributes of boolean fields.

pub(super) fn yes() -> bool {
    true
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde requires this signature"
)]
pub(super) fn is_false(value: &bool) -> bool {
    !value
}
