//! The parameters of a URL.

use lowkey_api::ApiError;

const FIELD: &str = "lock_name";

/// The lock's name out of `name=…`, with its escapes undone.
pub(super) fn lock_name(query: &str) -> Result<String, ApiError> {
    let mut names = query.split('&').filter_map(|pair| match pair.split_once('=') {
        Some(("name", value)) => Some(value),
        None if pair == "name" => Some(""),
        _ => None,
    });
    let Some(name) = names.next() else {
        return Err(ApiError::invalid(FIELD, "is missing; ask for GET /v1/lock?name=LOCK_NAME"));
    };
    if names.next().is_some() {
        return Err(ApiError::invalid(FIELD, "must be given once: GET /v1/lock?name=LOCK_NAME"));
    }
    let Some(bytes) = decode(name) else {
        return Err(ApiError::invalid(FIELD, "has a '%' that two hexadecimal digits do not follow"));
    };
    String::from_utf8(bytes)
        .map_err(|_| ApiError::invalid(FIELD, "must be UTF-8 when its escapes are undone"))
}

/// Undoes the escapes of a query: `%41` is a byte, and `+` a space. `None` if an escape is broken.
fn decode(text: &str) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => hex_digit(bytes.next()?)? << 4 | hex_digit(bytes.next()?)?,
            b'+' => b' ',
            other => other,
        });
    }
    Some(decoded)
}

fn hex_digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_undone() {
        for (query, name) in [
            ("name=jobs", "jobs"),
            ("name=a%2Fb%2fc", "a/b/c"),
            ("name=a/b=c?d", "a/b=c?d"),
            ("x=1&name=a+b%2Bc&y", "a b+c"),
            ("name=%C3%BC", "ü"),
            ("name=", ""),
            ("name", ""),
        ] {
            assert_eq!(lock_name(query).as_deref(), Ok(name), "{query}");
        }
    }

    #[test]
    fn what_cannot_be_a_name_is_refused_with_its_field() {
        for query in ["", "lock=a", "name=%ff", "name=%C3", "name=%", "name=%4", "name=%zz", "name=a&name=b"]
        {
            let error = lock_name(query).expect_err(query);
            assert_eq!(error.reason.as_str(), "INVALID_LOCK_NAME", "{query}");
        }
    }
}
