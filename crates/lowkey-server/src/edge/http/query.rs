//! The parameters of a URL, and the requests that are made of them.
//!
//! Each parameter may be given once, in either casing (`page_size` or `pageSize`), with the usual escapes. The name of a
//! lock is `name`, and is understood as `lock_name` too, which is what it is called everywhere else.
//! A parameter that the call does not know is refused, because it may have been meant to restrict
//! something. A parameter with a wrong value is refused with the reason of its field, and the refusal says
//! what is allowed.

use std::str::FromStr;

use ::http::{HeaderMap, HeaderName, Uri};
use lowkey_api::v1::{ObserveRequest, WatchRequest};
use lowkey_api::{ApiError, Position};
use serde::de::DeserializeOwned;

use super::routes::Routed;
use super::{given, strict};
use crate::edge::shown;

/// The header in which browsers send the `id:` of the last event that they saw.
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// The call that the parameters make.
pub(super) fn parse<C: Routed>(uri: &Uri) -> Result<C, ApiError> {
    let known = strict::fields_of::<C>();
    if known.is_empty() {
        none(uri)?;
    }
    let query = Query::of::<C>(uri)?;
    let mut given = Vec::new();
    for field in known.iter().filter(|field| is_in_snake_case(field)) {
        let name = parameter(field);
        match query.text_for(name, field)? {
            Some(text) => given.push((*field, text)),
            None if pairs(C::EXAMPLE).any(|(needed, _)| needed == name) => {
                let problem = format_args!("is missing; ask for GET {}?{}", C::PATH, C::EXAMPLE);
                return Err(ApiError::invalid(field, problem));
            }
            None => {}
        }
    }
    given::message(given)
}

/// `GET /v1/watch`
///
/// A browser that reconnects repeats the whole URL and adds the header Last-Event-ID. So the header counts,
/// and the beginning that the URL names does not.
pub(super) fn watch(uri: &Uri, headers: &HeaderMap) -> Result<WatchRequest, ApiError> {
    const FROM: &str = "must be a whole number from 1: the first revision that is wanted";
    let query = Query::of::<WatchRequest>(uri)?;
    let (name, prefix) = (query.text("name")?, query.text("prefix")?);
    if name.is_some() && prefix.is_some() {
        return Err(ApiError::invalid("prefix", "cannot go with name: give one of them"));
    }
    if name.as_deref() == Some("") {
        let problem = "is empty; to watch every lock, ask for GET /v1/watch?prefix=";
        return Err(ApiError::invalid("name", problem));
    }
    let from = query.number("from", FROM)?;
    if from == Some(0) {
        return Err(ApiError::invalid("from", format_args!("{FROM}, and is 0")));
    }
    let after = query.text("after")?.map(|after| position(after, "")).transpose()?;
    let (from, after) = match last_event_id(headers)? {
        Some(seen) => (None, Some(seen)),
        None => (from, after),
    };
    Ok(WatchRequest {
        name: name.unwrap_or_default(),
        prefix: prefix.unwrap_or_default(),
        from: from.unwrap_or_default(),
        after: after.unwrap_or_default(),
    })
}

/// `GET /v1/election/observe`
pub(super) fn observe(uri: &Uri) -> Result<ObserveRequest, ApiError> {
    let query = Query::of::<ObserveRequest>(uri)?;
    let Some(election) = query.text("election")? else {
        let problem = "is missing; ask for GET /v1/election/observe?election=NAME";
        return Err(ApiError::invalid("election", problem));
    };
    Ok(ObserveRequest { election })
}

/// The position in the header Last-Event-ID. An empty one is as good as none.
fn last_event_id(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    const SAID_BY: &str = "the header Last-Event-ID ";
    let mut values = headers.get_all(LAST_EVENT_ID).iter();
    let Some(value) = values.next().filter(|value| !value.is_empty()) else { return Ok(None) };
    if values.next().is_some() {
        return Err(ApiError::invalid("after", format_args!("{SAID_BY}must be given once")));
    }
    position(String::from_utf8_lossy(value.as_bytes()).into_owned(), SAID_BY).map(Some)
}

/// The text of a position, once it is clear that it is one.
fn position(text: String, said_by: &str) -> Result<String, ApiError> {
    match text.parse::<Position>() {
        Ok(_) => Ok(text),
        Err(invalid) => {
            let problem = format!("{said_by}{invalid}, and is {:?}", shown(&text));
            Err(ApiError::invalid("after", problem))
        }
    }
}

/// Checks a call that takes no parameters: what they were meant to say belongs elsewhere.
pub(super) fn none(uri: &Uri) -> Result<(), ApiError> {
    match parameters(uri).next() {
        None => Ok(()),
        Some((key, _)) => {
            Err(unknown(key, &[], "this call takes none: a POST is told everything in its body"))
        }
    }
}

/// The part of a URL after the question mark: names, with their escapes, and values.
fn parameters(uri: &Uri) -> impl Iterator<Item = (&str, &str)> {
    pairs(uri.query().unwrap_or_default())
}

pub(super) fn pairs(query: &str) -> impl Iterator<Item = (&str, &str)> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

/// The name of the parameter that fills a field, in the field's casing.
pub(super) fn parameter(field: &str) -> &str {
    match field {
        // The one parameter that is not called like its field.
        "lock_name" => "name",
        field => field,
    }
}

fn is_in_snake_case(field: &str) -> bool {
    !field.contains(|c: char| c.is_ascii_uppercase())
}

fn unknown(key: &str, known: &[&'static str], advice: &str) -> ApiError {
    let name = decode(key).map_or_else(|| key.into(), |bytes| String::from_utf8_lossy(&bytes).into_owned());
    strict::unknown_field("the parameter", &name, strict::nearest(&name, known), advice)
}

/// The parameters of a URL.
struct Query<'a> {
    uri: &'a Uri,
}

impl<'a> Query<'a> {
    /// Takes the parameters that are fields of a message, and no others.
    fn of<T: DeserializeOwned>(uri: &'a Uri) -> Result<Self, ApiError> {
        let fields = strict::fields_of::<T>();
        let known = || fields.iter().filter(|field| **field != "lockName").map(|field| parameter(field));
        let is_known = |key| known().chain(fields.iter().copied()).any(|known| is_named(key, known));
        match parameters(uri).find(|(key, _)| !is_known(key)) {
            Some((key, _)) => {
                let in_snake_case = known().filter(|name| is_in_snake_case(name));
                let advice = format!("the parameters are {}", in_snake_case.collect::<Vec<_>>().join(", "));
                Err(unknown(key, &known().collect::<Vec<_>>(), &advice))
            }
            None => Ok(Self { uri }),
        }
    }

    /// The parameter that is named like its field, with its escapes undone.
    fn text(&self, field: &'static str) -> Result<Option<String>, ApiError> {
        self.text_for(field, field)
    }

    /// The parameter `name`, given in snake case, which fills `field`. Under the field's own name it is taken too.
    fn text_for(&self, name: &str, field: &'static str) -> Result<Option<String>, ApiError> {
        let is_it = |key| is_named(key, name) || is_named(key, field);
        let mut values = parameters(self.uri).filter(|(key, _)| is_it(key)).map(|(_, value)| value);
        let Some(value) = values.next() else { return Ok(None) };
        if values.next().is_some() {
            return Err(ApiError::invalid(field, format_args!("must be given once, as {name}=…")));
        }
        let Some(bytes) = decode(value) else {
            return Err(ApiError::invalid(field, "has a '%' that two hexadecimal digits do not follow"));
        };
        let text = String::from_utf8(bytes);
        text.map(Some).map_err(|_| ApiError::invalid(field, "must be UTF-8 when its escapes are undone"))
    }

    /// A number in digits alone. What is `allowed` is told to those who give anything else.
    fn number<T: FromStr>(&self, field: &'static str, allowed: &str) -> Result<Option<T>, ApiError> {
        let Some(text) = self.text(field)? else { return Ok(None) };
        let is_digits = text.bytes().all(|byte| byte.is_ascii_digit());
        match text.parse() {
            Ok(number) if is_digits => Ok(Some(number)),
            _ => Err(given::refuse(field, allowed, &text)),
        }
    }
}

/// Whether `key`, as it stands in a URL, is `name` (in snake case) in either casing.
fn is_named(key: &str, name: &str) -> bool {
    let key = decode(key).and_then(|key| String::from_utf8(key).ok());
    key.is_some_and(|key| strict::is_named(&key, name))
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
    use ::http::HeaderValue;
    use lowkey_api::Reason;
    use lowkey_api::v1::{
        ExplainRequest, GetLockRequest, LeaderRequest, ListLocksRequest, QueryAuditRequest,
    };

    use super::*;

    fn uri(query: &str) -> Uri {
        format!("/?{query}").parse().unwrap()
    }

    fn watch_of(query: &str) -> Result<WatchRequest, ApiError> {
        watch(&uri(query), &HeaderMap::new())
    }

    #[test]
    fn escapes_are_undone() {
        for (query, name) in [
            ("name=jobs", "jobs"),
            ("name=a%2Fb%2fc", "a/b/c"),
            ("name=a/b=c?d", "a/b=c?d"),
            ("&name=a+b%2Bc&&", "a b+c"),
            ("n%61me=%C3%BC", "ü"),
            ("name=", ""),
            ("name", ""),
        ] {
            assert_eq!(
                parse(&uri(query)).map(|lock: GetLockRequest| lock.lock_name).as_deref(),
                Ok(name),
                "{query}"
            );
        }
    }

    #[test]
    fn what_cannot_be_a_name_is_refused_with_its_field() {
        for query in ["", "stale=1", "name=%ff", "name=%C3", "name=%", "name=%4", "name=%zz", "name=a&name=b"]
        {
            let error = parse::<GetLockRequest>(&uri(query)).expect_err(query);
            assert_eq!(error.reason.as_str(), "INVALID_LOCK_NAME", "{query}");
        }
    }

    #[test]
    fn either_casing_is_understood_but_not_both_at_once() {
        for query in ["page_size=7&page_token=t", "pageToken=t&pageSize=7", "pageSize=007&page_token=t"] {
            let list = parse::<ListLocksRequest>(&uri(query)).unwrap();
            assert_eq!((list.page_size, list.page_token.as_str()), (7, "t"), "{query}");
        }
        for query in ["page_size=7&pageSize=7", "pageSize=1&pageSize=1"] {
            let error = parse::<ListLocksRequest>(&uri(query)).unwrap_err();
            assert_eq!(error.reason.as_str(), "INVALID_PAGE_SIZE", "{query}");
            assert!(error.message.contains("once"), "{}", error.message);
        }
        for query in ["PageSize=7", "PAGE_SIZE=7", "pagesize=7", "page-size=7", "page_Size=7"] {
            let error = parse::<ListLocksRequest>(&uri(query)).unwrap_err();
            assert_eq!(error.reason, Reason::UnknownField, "{query}");
            assert_eq!(error.metadata["nearest"].to_lowercase().replace('_', ""), "pagesize", "{query}");
        }
    }

    #[test]
    fn the_name_of_a_lock_is_taken_under_each_of_its_names() {
        for query in ["name=a/b&token=7", "lock_name=a%2Fb&token=7", "lockName=a/b&token=7"] {
            let query = query.replace("token", "fencing_token");
            let audit = parse::<QueryAuditRequest>(&uri(&query)).unwrap();
            assert_eq!((audit.lock_name.as_str(), audit.fencing_token), ("a/b", 7), "{query}");
            let explain = parse::<ExplainRequest>(&uri(&query)).unwrap();
            assert_eq!((explain.lock_name.as_str(), explain.fencing_token), ("a/b", 7), "{query}");
        }
        for query in ["name=a&lock_name=a", "lock_name=a&lockName=a", "lockName=a&name=b"] {
            let error = parse::<QueryAuditRequest>(&uri(query)).unwrap_err();
            assert_eq!(error.reason.as_str(), "INVALID_LOCK_NAME", "{query}");
            assert!(error.message.contains("once"), "{}", error.message);
        }
    }

    #[test]
    fn unknown_parameters_are_refused_with_the_nearest_known_one() {
        for (query, field, nearest) in [
            ("nam=a", "nam", Some("name")),
            ("name=a&stael=true", "stael", Some("stale")),
            ("name=a&n%61m=b", "nam", Some("name")),
            ("name=a&%ff=b", "\u{fffd}", None),
            ("name=a&%=b", "%", None),
            ("name=a&=b", "", None),
            ("name=a&utterly_different=b", "utterly_different", None),
        ] {
            let error = parse::<GetLockRequest>(&uri(query)).expect_err(query);
            assert_eq!(error.reason, Reason::UnknownField, "{query}");
            assert_eq!(error.metadata["field"], field, "{query}");
            assert_eq!(error.metadata.get("nearest").map(String::as_str), nearest, "{query}");
            let told =
                nearest.map_or("the parameters are name, stale".into(), |name| format!("mean {name}?"));
            assert!(error.message.contains(&told), "{}", error.message);
        }
        assert!(none(&uri("")).is_ok() && none(&uri("&&")).is_ok());
        let error = none(&uri("fencing_token=8")).unwrap_err();
        assert_eq!(error.reason, Reason::UnknownField);
        assert!(error.message.contains("in its body"), "{}", error.message);
    }

    #[test]
    fn flags_are_true_or_false() {
        for (query, stale) in
            [("", false), ("stale=true", true), ("stale=1", true), ("stale=false", false), ("stale=0", false)]
        {
            assert_eq!(parse::<ListLocksRequest>(&uri(query)).unwrap().stale, stale, "{query}");
        }
        for query in ["stale", "stale=", "stale=yes", "stale=TRUE", "stale=2"] {
            assert_eq!(
                parse::<ListLocksRequest>(&uri(query)).unwrap_err().reason.as_str(),
                "INVALID_STALE",
                "{query}"
            );
        }
    }

    #[test]
    fn a_watch_is_of_a_name_or_of_a_prefix() {
        assert_eq!(watch_of("name=a").unwrap().name, "a");
        assert_eq!(watch_of("prefix=a/").unwrap().prefix, "a/");
        assert_eq!(watch_of("prefix=").unwrap(), WatchRequest::default());
        assert_eq!(watch_of("").unwrap(), WatchRequest::default());
        for (query, reason) in [
            ("name=a&name=a", "INVALID_NAME"),
            ("name=", "INVALID_NAME"),
            ("name=%", "INVALID_NAME"),
            ("name=a&prefix=b", "INVALID_PREFIX"),
            ("name=a&prefix=", "INVALID_PREFIX"),
            ("prefix=a&prefix=b", "INVALID_PREFIX"),
        ] {
            assert_eq!(watch_of(query).unwrap_err().reason.as_str(), reason, "{query}");
        }
    }

    #[test]
    fn a_watch_begins_at_a_revision_or_after_a_position() {
        assert_eq!(watch_of("from=1").unwrap().from, 1);
        assert_eq!(watch_of("from=18446744073709551615").unwrap().from, u64::MAX);
        assert_eq!(watch_of("after=12.3").unwrap().after, "12.3");
        assert_eq!(watch_of("after=12").unwrap().after, "12");
        for from in ["", "0", "-1", "%2B1", "1.5", "1e3", "18446744073709551616", "now"] {
            let error = watch_of(&format!("from={from}")).expect_err(from);
            assert_eq!(error.reason.as_str(), "INVALID_FROM", "{from}");
            assert!(error.message.contains("whole number from 1"), "{}", error.message);
        }
        for after in ["", "12.", ".3", "1.2.3", "-1", "12,3", "1.4294967296"] {
            let error = watch_of(&format!("after={after}")).expect_err(after);
            assert_eq!(error.reason.as_str(), "INVALID_AFTER", "{after}");
            assert!(error.message.contains("REVISION.ORDINAL"), "{}", error.message);
        }
    }

    #[test]
    fn what_a_browser_saw_last_counts_more_than_the_url_that_it_repeats() {
        let resumed = |query, seen| {
            let mut headers = HeaderMap::new();
            headers.insert(LAST_EVENT_ID, HeaderValue::from_static(seen));
            watch(&uri(query), &headers).map(|watch| (watch.from, watch.after))
        };
        for query in ["name=a", "name=a&from=5", "name=a&after=7.1"] {
            assert_eq!(resumed(query, "12.3"), Ok((0, "12.3".to_owned())), "{query}");
        }
        assert_eq!(resumed("name=a&from=5", ""), Ok((5, String::new())));
        let error = resumed("name=a", "yesterday").unwrap_err();
        assert_eq!(error.reason.as_str(), "INVALID_AFTER");
        assert!(error.message.contains("Last-Event-ID"), "{}", error.message);
    }

    #[test]
    fn an_election_is_needed() {
        assert_eq!(parse::<LeaderRequest>(&uri("election=e&stale=1")).unwrap().election, "e");
        assert_eq!(observe(&uri("election=e")).unwrap().election, "e");
        assert_eq!(parse::<LeaderRequest>(&uri("stale=1")).unwrap_err().reason.as_str(), "INVALID_ELECTION");
        assert_eq!(parse::<LeaderRequest>(&uri("name=e")).unwrap_err().reason.as_str(), "UNKNOWN_FIELD");
        assert_eq!(observe(&uri("")).unwrap_err().reason.as_str(), "INVALID_ELECTION");
    }
}
