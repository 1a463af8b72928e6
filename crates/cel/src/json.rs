//! Converts results of expressions to JSON, up to a size limit.

use cel::Value as Cel;
use serde_json::{Map, Value};

/// Maximum size of a result: bytes of strings and keys, plus number of values.
const MAX_SIZE: usize = 256 * 1024;

/// Converts `value` to JSON.
///
/// # Errors
/// The cause, if JSON cannot represent `value`, or `value` exceeds the size limit.
pub(crate) fn of(value: &Cel) -> Result<Value, String> {
    convert(value, &mut MAX_SIZE.clone())
}

fn convert(value: &Cel, remaining: &mut usize) -> Result<Value, String> {
    let size = match value {
        Cel::String(text) => text.len() + 1,
        _ => 1,
    };
    spend(remaining, size)?;
    match value {
        Cel::List(items) => items
            .iter()
            .map(|item| convert(item, remaining))
            .collect::<Result<_, _>>()
            .map(Value::Array),
        Cel::Map(map) => {
            let mut object = Map::new();
            for (key, value) in map.map.iter() {
                let key = key.to_string();
                spend(remaining, key.len())?;
                object.insert(key, convert(value, remaining)?);
            }
            Ok(Value::Object(object))
        }
        Cel::Int(_) | Cel::UInt(_) | Cel::Float(_) | Cel::String(_) | Cel::Bool(_) | Cel::Null => {
            value.json().map_err(|_| no_json(value))
        }
        _ => Err(no_json(value)),
    }
}

fn spend(remaining: &mut usize, size: usize) -> Result<(), String> {
    *remaining = remaining
        .checked_sub(size)
        .ok_or_else(|| format!("the result exceeds {MAX_SIZE} bytes"))?;
    Ok(())
}

fn no_json(value: &Cel) -> String {
    format!(
        "the result has type {}, which JSON does not support",
        value.type_of()
    )
}
