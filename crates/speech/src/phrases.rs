//! Finds the templates that a sentence was made by, and says it in another language.
//!
//! A sentence may be put together of others: what stands in a hole may be a sentence of its own, and tails such as
//! `, saved to {}` go on with what another template began. So every stretch of the text is looked at, each once, and the
//! reading in which most letters belong to templates wins; of equal ones that in which most other characters do, then that
//! whose outermost template has most letters. Nothing depends on the order in which they are found.

use std::collections::HashMap;
use std::rc::Rc;

use crate::catalogue::{Catalogue, Entry};
use crate::template::Hole;

/// Whether a word alone is a word, or may be a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Listening {
    ForSentences,
    ForWords,
}

/// Between sentences that stand beside each other: what is written there in English, and in the translation.
const JOINTS: [(&str, &str); 4] = [(": ", "："), ("; ", "；"), (", ", "，"), (". ", "。")];

/// Steps of one sentence at most; a text that takes more was made by no template.
const STEPS_MAX: usize = 50_000;
/// Sentences are shorter; what is longer is data.
const BYTES_MAX: usize = 2000;

#[derive(Clone, Debug)]
struct Reading {
    weight: Weight,
    /// Letters of the template that the whole of it was made by; none where stretches only stand beside each other.
    outermost: usize,
    text: String,
}

/// How much of a stretch belongs to templates: letters, then characters of any kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Weight(usize, usize);

impl std::ops::AddAssign for Weight {
    fn add_assign(&mut self, other: Self) {
        self.0 += other.0;
        self.1 += other.1;
    }
}

/// A word alone may be there by chance, so it speaks for no reading.
fn weight(entry: &Entry) -> Weight {
    if entry.english.is_word() {
        return Weight::default();
    }
    Weight(entry.english.letters(), entry.english.literals.iter().map(String::len).sum())
}

type Span = (usize, usize, Listening);

pub struct Phrases<'a> {
    catalogue: &'a Catalogue,
    text: &'a str,
    known: HashMap<Span, Option<Rc<Reading>>>,
    steps: usize,
}

/// A stretch of the text for each hole of an entry.
type Places = Vec<(usize, usize)>;

impl<'a> Phrases<'a> {
    pub fn of(catalogue: &'a Catalogue, text: &'a str) -> Self {
        Self { catalogue, text, known: HashMap::new(), steps: 0 }
    }

    /// The whole text; `None` where no template has a part in it.
    pub fn spoken(mut self, listening: Listening) -> Option<String> {
        if self.text.len() > BYTES_MAX {
            return None;
        }
        let reading = self.best((0, self.text.len(), listening))?;
        (self.steps < STEPS_MAX).then(|| reading.text.clone())
    }

    fn slice(&self, from: usize, to: usize) -> &'a str {
        &self.text[from..to]
    }

    fn best(&mut self, span: Span) -> Option<Rc<Reading>> {
        if let Some(known) = self.known.get(&span) {
            return known.clone();
        }
        // A stretch within itself is read as nothing; there is none that is not shorter, but for joints of nothing.
        self.known.insert(span, None);
        let found = self.read(span).map(Rc::new);
        self.known.insert(span, found.clone());
        found
    }

    fn read(&mut self, span: Span) -> Option<Reading> {
        let (from, to, listening) = span;
        let text = self.slice(from, to);
        self.steps += 1;
        if !text.contains(|c: char| c.is_ascii_alphabetic()) || self.steps > STEPS_MAX {
            return None;
        }
        let mut best = None;
        let is_all = from == 0 && to == self.text.len();
        if let Some(entry) = self.catalogue.fixed(text)
            && heard(entry, listening)
            && (is_all || !entry.is_whole)
        {
            return Some(whole(entry));
        }
        let catalogue = self.catalogue;
        let suits = |entry: &&Entry| heard(entry, listening) && (is_all || !entry.is_whole);
        for entry in catalogue.open(text).filter(suits) {
            better(&mut best, self.made_by(entry, from, to));
        }
        for tail in self.tails(span) {
            better(&mut best, Some(tail));
        }
        for joined in self.joined(span, &JOINTS) {
            better(&mut best, Some(joined));
        }
        // Words in a row are no sentence where there is one.
        if best.is_none() && listening == Listening::ForWords {
            for joined in self.joined(span, &[(" ", " ")]) {
                better(&mut best, Some(joined));
            }
        }
        best
    }

    /// The stretch as this entry's sentence, with the best reading of every hole.
    fn made_by(&mut self, entry: &Entry, from: usize, to: usize) -> Option<Reading> {
        let literals = &entry.english.literals;
        let text = self.slice(from, to);
        let last = literals.last().expect("never empty");
        let least: usize = literals.iter().map(String::len).sum();
        if text.len() < least || !text.starts_with(literals[0].as_str()) || !text.ends_with(last.as_str()) {
            return None;
        }
        let mut ways = Vec::new();
        self.places(entry, from + literals[0].len(), to - last.len(), &mut Vec::new(), &mut ways);
        let mut best: Option<Reading> = None;
        for places in ways {
            let mut weight = weight(entry);
            let mut said: HashMap<&str, String> = HashMap::new();
            for (hole, &(begin, end)) in entry.english.holes.iter().zip(&places) {
                let in_translation = entry.translation.holes.iter().find(|other| other.names == hole.names);
                let is_words = in_translation.is_some_and(|hole| hole.is_words);
                let inside = if is_words { Listening::ForWords } else { Listening::ForSentences };
                let reading = self.best((begin, end, inside));
                weight += reading.as_ref().map_or_else(Weight::default, |reading| reading.weight);
                let text = reading.map_or_else(|| self.slice(begin, end).to_owned(), |reading| reading.text.clone());
                // A value that stands twice in the sentence is the same both times.
                said.entry(hole.names[0].as_str()).or_insert(text);
            }
            let text =
                entry.translation.filled(|hole: &Hole| said.get(hole.names[0].as_str()).cloned().unwrap_or_default());
            better(&mut best, Some(Reading { weight, outermost: entry.english.letters(), text }));
        }
        best
    }

    /// All ways to find the literals between the first and the last one, in order.
    fn places(&mut self, entry: &Entry, from: usize, end: usize, begun: &mut Places, ways: &mut Vec<Places>) {
        let (literals, holes) = (&entry.english.literals, &entry.english.holes);
        let index = begun.len();
        if from > end || self.steps > STEPS_MAX {
            return;
        }
        self.steps += 1;
        if index + 1 == holes.len() {
            if fits(&holes[index], self.slice(from, end)) {
                begun.push((from, end));
                ways.push(begun.clone());
                begun.pop();
            }
            return;
        }
        let literal = literals[index + 1].as_str();
        let found: Vec<usize> = self.slice(from, end).match_indices(literal).map(|(at, _)| from + at).collect();
        for at in found {
            if fits(&holes[index], self.slice(from, at)) {
                begun.push((from, at));
                self.places(entry, at + literal.len(), end, begun, ways);
                begun.pop();
            }
        }
    }

    /// A beginning and a tail that goes on with it.
    fn tails(&mut self, (from, to, listening): Span) -> Vec<Reading> {
        let mut found = Vec::new();
        let catalogue = self.catalogue;
        let begins = self.slice(from, to).match_indices([' ', ',', ';']).map(|(at, _)| from + at).collect::<Vec<_>>();
        for at in begins.into_iter().filter(|&at| at > from) {
            let rest = self.slice(at, to);
            let goes_on = |entry: &&Entry| entry.english.is_tail() && heard(entry, listening);
            let mut tail = catalogue.fixed(rest).filter(goes_on).map(whole);
            for entry in catalogue.open(rest).filter(goes_on) {
                better(&mut tail, self.made_by(entry, at, to));
            }
            let Some(tail) = tail else { continue };
            let begin = self.best((from, at, listening));
            let mut weight = tail.weight;
            weight += begin.as_ref().map_or_else(Weight::default, |begin| begin.weight);
            let begin = begin.map_or_else(|| self.slice(from, at).to_owned(), |begin| begin.text.clone());
            found.push(Reading { weight, outermost: 0, text: begin + &tail.text });
        }
        found
    }

    /// Two stretches beside each other, of which at least one can be said.
    fn joined(&mut self, (from, to, listening): Span, joints: &[(&str, &str)]) -> Vec<Reading> {
        let mut found = Vec::new();
        for &(joint, said) in joints {
            let at: Vec<usize> = self.slice(from, to).match_indices(joint).map(|(at, _)| from + at).collect();
            for at in at {
                let (left, right) = (self.best((from, at, listening)), self.best((at + joint.len(), to, listening)));
                if left.is_none() && right.is_none() {
                    continue;
                }
                // What was not understood keeps what stands beside it.
                let said = if left.is_some() && right.is_some() { said } else { joint };
                let mut weight = Weight::default();
                [&left, &right].into_iter().flatten().for_each(|reading| weight += reading.weight);
                let text = |reading: Option<Rc<Reading>>, from: usize, to: usize| {
                    reading.map_or_else(|| self.slice(from, to).to_owned(), |reading| reading.text.clone())
                };
                let text = text(left, from, at) + said + &text(right, at + joint.len(), to);
                found.push(Reading { weight, outermost: 0, text });
            }
        }
        found
    }
}

fn heard(entry: &Entry, listening: Listening) -> bool {
    listening == Listening::ForWords || !entry.is_word
}

fn fits(hole: &Hole, text: &str) -> bool {
    !hole.is_number || {
        let figure = text.trim_start();
        !figure.is_empty() && figure.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | '-' | '+' | 'e'))
            || matches!(figure, "NaN" | "inf" | "-inf")
    }
}

/// What an entry without holes says.
fn whole(entry: &Entry) -> Reading {
    let text = entry.translation.literals[0].clone();
    Reading { weight: weight(entry), outermost: entry.english.letters(), text }
}

/// The first of equal ones stays.
fn better(best: &mut Option<Reading>, found: Option<Reading>) {
    if let Some(found) = found
        && best.as_ref().is_none_or(|best| (found.weight, found.outermost) > (best.weight, best.outermost))
    {
        *best = Some(found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRIES: &str = "\
{} holds no run
  {} 中没有运行
cannot read {}: {error}
  无法读取 {}：{error}
measured {gpu} in {}{saved}; repeat it
  已测量 {gpu}，用时 {}；重复
, saved to {}
  ，保存到 {}
memory
  内存
more {memory} is faster
  {memory!}更多会更快
took {:.1} of it
  用了 {:.1}
gone away
  已消失
^in {}
  在 {} 中
";

    fn said(text: &str, listening: Listening) -> String {
        let (catalogue, faults) = Catalogue::read(&[("x", ENTRIES)]);
        assert!(faults.is_empty(), "{faults:?}");
        Phrases::of(&catalogue, text).spoken(listening).unwrap_or_else(|| text.to_owned())
    }

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(said(text, Listening::ForSentences), expected);
    }

    #[test]
    fn sentences_are_found_within_sentences() {
        check("a: b holds no run", "a: b 中没有运行");
        check("cannot read a: b: gone away", "无法读取 a：b: 已消失");
        check("cannot read x: holds no run holds no run", "无法读取 x：holds no run 中没有运行");
        check("measured H200 in 3 s, saved to a, b; repeat it", "已测量 H200，用时 3 s，保存到 a, b；重复");
        check("measured H200 in 3 s; repeat it", "已测量 H200，用时 3 s；重复");
        check("gone away; gone away", "已消失；已消失");
    }

    #[test]
    fn what_is_not_known_stays() {
        check("something else", "something else");
        check("no run holds", "no run holds");
        check("", "");
        check("a, gone away", "a, 已消失");
    }

    #[test]
    fn a_word_alone_may_be_a_name() {
        check("memory holds no run", "memory 中没有运行");
        check("memory", "memory");
        assert_eq!(said("memory", Listening::ForWords), "内存");
        assert_eq!(said("memory 3 GiB, x", Listening::ForWords), "内存 3 GiB, x");
        check("more memory is faster", "内存更多会更快");
    }

    #[test]
    fn numbers_are_numbers() {
        check("took 12.5 of it", "用了 12.5");
        check("took NaN of it", "用了 NaN");
        check("took all of it", "took all of it");
    }

    #[test]
    fn whole_texts_are_whole() {
        check("in a folder", "在 a folder 中");
        check("x: in a folder", "x: in a folder");
    }

    /// However long, and however often it could be cut.
    #[test]
    fn every_text_is_answered_soon() {
        check(&"a, ".repeat(2000), &"a, ".repeat(2000));
        let nested = "cannot read a: ".repeat(40);
        assert!(!said(&nested, Listening::ForSentences).is_empty());
    }
}
