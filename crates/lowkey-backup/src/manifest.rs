//! What a backup consists of: `manifest.json`.
//!
//! It is JSON for people and programs, and sealed for this one: its last line is `  "sha256": "…"` and a brace, and the
//! digest is that of every byte before that line. So a changed byte is found anywhere, white space too.

use std::fmt::Write as _;

use lowkey_core::{ClusterId, Epoch, GroupId};
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

/// The version of the format. Raised when an older reader would misread it.
const FORMAT: u32 = 1;

/// The file that makes a backup of the others.
pub(crate) const MANIFEST_FILE: &str = "manifest.json";

/// A manifest has a line for each group and each node: this is far more than any has.
pub(crate) const MANIFEST_BYTES_MAX: u64 = 4 * 1024 * 1024;

const SEAL: &str = "\n  \"sha256\": \"";
const END: &str = "\"\n}\n";

/// What a backup consists of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// The version of this format.
    pub format: u32,
    /// The version of the software that made it.
    pub version: String,
    /// Whose backup it is: 32 hexadecimal digits.
    pub cluster: String,
    /// The epoch of that cluster; 0 if it has none.
    #[serde(with = "text_number")]
    pub epoch: u64,
    /// When it was made, in milliseconds since 1970, by the clock of the node that made it.
    #[serde(with = "text_number")]
    pub made_unix_ms: u64,
    /// The name of that node.
    pub made_by: String,
    /// The nodes of the cluster, for who wants to ask whether they still live.
    pub members: Vec<MemberAddress>,
    /// The groups, the root first.
    pub groups: Vec<GroupFile>,
}

/// A node of the cluster, as it was known when the backup was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberAddress {
    /// Its name.
    pub name: String,
    /// Where gRPC clients reached it.
    pub grpc_address: String,
}

/// The snapshot of one group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupFile {
    /// The group's number.
    pub group: u32,
    /// Its file, beside the manifest.
    pub file: String,
    /// The last entry that is in it.
    #[serde(with = "text_number")]
    pub index: u64,
    /// That entry's term.
    #[serde(with = "text_number")]
    pub term: u64,
    /// The highest token that was granted.
    #[serde(with = "text_number")]
    pub last_token: u64,
    /// The highest of all numbers that are never given twice.
    #[serde(with = "text_number")]
    pub highest_counter: u64,
    /// Leases in it.
    pub leases: usize,
    /// Locks that are held or waited for in it.
    pub locks: usize,
    /// The hash of the state: 16 hexadecimal digits.
    pub state_hash: String,
    /// Its size.
    #[serde(with = "text_number")]
    pub size_bytes: u64,
    /// Its SHA-256: 64 hexadecimal digits.
    pub sha256: String,
}

impl Manifest {
    /// How many bytes its files have in all.
    pub fn size_bytes(&self) -> u64 {
        self.groups.iter().map(|group| group.size_bytes).sum()
    }

    /// The highest of all numbers that are never given twice.
    pub fn highest_counter(&self) -> u64 {
        self.groups.iter().map(|group| group.highest_counter).max().unwrap_or(0)
    }

    pub(crate) fn new(
        cluster: ClusterId,
        epoch: Option<Epoch>,
        made: (u64, &str),
        members: Vec<MemberAddress>,
        groups: Vec<GroupFile>,
    ) -> Self {
        Self {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            cluster: cluster.to_string(),
            epoch: epoch.map_or(0, Epoch::number),
            made_unix_ms: made.0,
            made_by: made.1.to_owned(),
            members,
            groups,
        }
    }

    /// The manifest as its file, sealed.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut text = serde_json::to_string_pretty(self).expect("numbers, texts and lists are JSON");
        let brace = text.trim_end_matches('}').trim_end().len();
        text.truncate(brace);
        text.push(',');
        let seal = sha256(text.as_bytes());
        text.push_str(SEAL);
        text.push_str(&seal);
        text.push_str(END);
        text.into_bytes()
    }

    /// Reads what [`Manifest::encode`] wrote; says what is wrong with anything else.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let body = open_seal(bytes).ok_or("it is not whole: its own checksum does not fit")?;
        let json = [body.strip_suffix(b",").unwrap_or(body), b"}"].concat();
        let format =
            serde_json::from_slice::<Format>(&json).map_err(|error| format!("it is no manifest: {error}"))?;
        if format.format != FORMAT {
            return Err(format!(
                "it has format {}, and this version reads format {FORMAT}: use the version that wrote it, {}",
                format.format, format.version
            ));
        }
        serde_json::from_slice(&json).map_err(|error| format!("it is no manifest: {error}"))
    }

    /// The root's file: every cluster has that group.
    pub(crate) fn root(&self) -> Option<&GroupFile> {
        self.groups.iter().find(|group| group.group == GroupId::ROOT.0)
    }
}

#[derive(Deserialize)]
struct Format {
    format: u32,
    #[serde(default)]
    version: String,
}

/// What the seal is about, if it fits.
fn open_seal(bytes: &[u8]) -> Option<&[u8]> {
    let rest = bytes.strip_suffix(END.as_bytes())?;
    let (rest, seal) = rest.split_at_checked(rest.len().checked_sub(64)?)?;
    let body = rest.strip_suffix(SEAL.as_bytes())?;
    (sha256(body).as_bytes() == seal).then_some(body)
}

/// SHA-256, in hexadecimal digits.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    hex(digest(&SHA256, bytes).as_ref())
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// 64-bit numbers are texts: many readers of JSON would round them.
mod text_number {
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(number: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(number)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|_| D::Error::custom(format!("{text:?} is no number")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        let member = MemberAddress { name: "n1".into(), grpc_address: "10.0.0.1:9000".into() };
        let group = GroupFile {
            group: 0,
            file: "g1.snap".into(),
            index: u64::MAX,
            term: 3,
            last_token: 7,
            highest_counter: u64::MAX,
            leases: 1,
            locks: 2,
            state_hash: "00000000000000ff".into(),
            size_bytes: 100,
            sha256: sha256(b"x"),
        };
        let epoch = Epoch::new(29_900_800);
        Manifest::new(ClusterId([7; 16]), epoch, (1_785_000_000_000, "n1"), vec![member], vec![group])
    }

    #[test]
    fn it_is_json_and_is_read_back() {
        let bytes = manifest().encode();
        assert_eq!(Manifest::decode(&bytes), Ok(manifest()));
        let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(json["groups"][0]["index"], u64::MAX.to_string());
        assert_eq!(json["epoch"], "29900800");
        assert_eq!(json["sha256"].as_str().unwrap().len(), 64);
    }

    #[test]
    fn every_changed_byte_and_every_cut_is_found() {
        let bytes = manifest().encode();
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << bit;
                assert!(Manifest::decode(&changed).is_err(), "byte {at}, bit {bit}");
            }
            assert!(Manifest::decode(&bytes[..at]).is_err(), "cut at {at}");
        }
        assert!(Manifest::decode(&[&bytes[..], b"\n"].concat()).is_err());
    }

    #[test]
    fn another_format_is_told_by_its_version() {
        let later = Manifest { format: 2, version: "9.9.9".into(), ..manifest() };
        let told = Manifest::decode(&later.encode()).unwrap_err();
        assert!(told.contains("format 2") && told.contains("9.9.9"), "{told}");
    }
}
