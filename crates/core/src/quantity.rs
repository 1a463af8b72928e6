//! Values of Kubernetes quantities.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Number of units of [`parse`] in 1.
const NANO: u128 = 1_000_000_000;
/// Maximum number of digits of a number, so that no product overflows.
const MAX_DIGITS: usize = 18;

/// Returns the value of a non-negative `quantity` in units of 10⁻⁹, rounded down
/// (<https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/>). `None` if it is not a quantity, or has more than 18
/// digits.
pub(crate) fn parse(quantity: &Quantity) -> Option<u128> {
    let text = quantity.0.as_str();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, suffix) = text.split_at(end.unwrap_or(text.len()));
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = format!("{whole}{fraction}");
    if digits.is_empty() || digits.len() > MAX_DIGITS {
        return None;
    }
    let (multiplier, divisor) = scale(suffix)?;
    let decimals = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let value = digits.parse::<u128>().ok()?.checked_mul(multiplier)?;
    Some(value / decimals / divisor)
}

/// Whether `one` is greater than `other`. False if one of them is not a quantity.
pub(crate) fn exceeds(one: &Quantity, other: &Quantity) -> bool {
    let values = parse(one).zip(parse(other));
    values.is_some_and(|(one, other)| one > other)
}

/// Returns the factor of `suffix`, in units of 10⁻⁹, as multiplier and divisor.
fn scale(suffix: &str) -> Option<(u128, u128)> {
    let binary = |power: u32| Some((NANO << (10 * power), 1));
    let decimal = |power: u32| Some((10_u128.checked_pow(9 + power)?, 1));
    match suffix {
        "" => decimal(0),
        "n" => Some((1, 1)),
        "u" => Some((1_000, 1)),
        "m" => Some((1_000_000, 1)),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        _ => exponent(suffix),
    }
}

/// Returns the factor of an exponent such as `e3` or `E-3`. Exponents are at most 18, and at least -18.
fn exponent(suffix: &str) -> Option<(u128, u128)> {
    let power = suffix.strip_prefix(['e', 'E'])?.parse::<i8>().ok()?;
    let magnitude = 10_u128.pow(u32::from(power.unsigned_abs()).min(19));
    match power {
        0..=18 => Some((NANO * magnitude, 1)),
        -18..=-1 => Some((NANO, magnitude)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Option<u128> {
        parse(&Quantity(text.to_owned()))
    }

    #[test]
    fn equal_quantities_have_equal_values() {
        for (one, other) in [
            ("1", "1000m"),
            ("0.5", "500m"),
            (".5", "5e-1"),
            ("1.", "1"),
            ("1Gi", "1024Mi"),
            ("1.5Gi", "1536Mi"),
            ("2k", "2e3"),
            ("1n", "0.001u"),
            ("1E", "1E18"),
        ] {
            assert_eq!(value(one), value(other), "{one}");
            assert!(value(one).is_some(), "{one}");
        }
        assert!(value("1Gi") > value("1G"));
        assert!(value("9Ei") > value("9E"));
    }

    #[test]
    fn other_texts_are_no_quantities() {
        for text in [
            "",
            ".",
            "-1",
            "+1",
            "1 Gi",
            "1gi",
            "Gi",
            "1.2.3",
            "e3",
            "1e",
            "1e99",
            "1e-300",
            "much",
            "1234567890123456789",
        ] {
            assert_eq!(value(text), None, "{text:?}");
        }
    }
}
