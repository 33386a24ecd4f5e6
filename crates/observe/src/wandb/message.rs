//! The records that are needed of W&B's `wandb_internal.proto`.

use serde_json::Value;

use crate::wire::{bytes, varint_field};

/// A path of names and the value there.
pub type Item = (Vec<String>, Value);

/// Field numbers of a record's content.
const HISTORY: u64 = 2;
const SUMMARY: u64 = 3;
const RUN: u64 = 17;
const EXIT: u64 = 18;
const HEADER: u64 = 21;
const FOOTER: u64 = 22;

/// What a run is called, and since when it goes on.
pub struct Run<'a> {
    pub id: &'a str,
    pub project: &'a str,
    pub name: &'a str,
    /// Seconds since 1970.
    pub start: u64,
    pub config: &'a [Item],
}

pub fn header(number: u64) -> Vec<u8> {
    let mut version = Vec::new();
    bytes(&mut version, 1, concat!("plimsoll ", env!("CARGO_PKG_VERSION")).as_bytes());
    let mut header = Vec::new();
    bytes(&mut header, 1, &version);
    record(number, HEADER, &header)
}

pub fn run(number: u64, run: &Run<'_>) -> Vec<u8> {
    let mut content = Vec::new();
    bytes(&mut content, 1, run.id.as_bytes());
    bytes(&mut content, 3, run.project.as_bytes());
    let config: Vec<u8> = run.config.iter().flat_map(|entry| item(1, entry)).collect();
    bytes(&mut content, 4, &config);
    bytes(&mut content, 8, run.name.as_bytes());
    let mut start = Vec::new();
    varint_field(&mut start, 1, run.start);
    bytes(&mut content, 17, &start);
    record(number, RUN, &content)
}

/// A row of the run's curves.
pub fn history(number: u64, step: u64, items: &[Item]) -> Vec<u8> {
    let mut content: Vec<u8> = items.iter().flat_map(|entry| item(1, entry)).collect();
    let mut at = Vec::new();
    if step > 0 {
        varint_field(&mut at, 1, step);
    }
    bytes(&mut content, 2, &at);
    record(number, HISTORY, &content)
}

/// The last value of each curve.
pub fn summary(number: u64, items: &[Item]) -> Vec<u8> {
    let content: Vec<u8> = items.iter().flat_map(|entry| item(1, entry)).collect();
    record(number, SUMMARY, &content)
}

pub fn exit(number: u64, code: u8, runtime_s: u64) -> Vec<u8> {
    let mut content = Vec::new();
    if code > 0 {
        varint_field(&mut content, 1, u64::from(code));
    }
    varint_field(&mut content, 2, runtime_s);
    record(number, EXIT, &content)
}

pub fn footer(number: u64) -> Vec<u8> {
    record(number, FOOTER, &[])
}

fn record(number: u64, kind: u64, content: &[u8]) -> Vec<u8> {
    let mut record = Vec::new();
    varint_field(&mut record, 1, number);
    bytes(&mut record, kind, content);
    record
}

/// An entry of a configuration, a row or a summary: one name as such, several as a path.
fn item(field: u64, (path, value): &Item) -> Vec<u8> {
    let mut content = Vec::new();
    match path.as_slice() {
        [name] => bytes(&mut content, 1, name.as_bytes()),
        path => path.iter().for_each(|name| bytes(&mut content, 2, name.as_bytes())),
    }
    bytes(&mut content, 16, value.to_string().as_bytes());
    let mut item = Vec::new();
    bytes(&mut item, field, &content);
    item
}
