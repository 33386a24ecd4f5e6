//! One definition per key: [`section!`] makes the typed struct, the schema's table and the reader.

use std::collections::BTreeMap;

use super::kind::FromValue;
use super::reader::Reader;
use super::schema::Section;
use crate::failure::Failure;

/// A section of the run file.
pub trait Keys: Sized {
    const SECTION: &'static Section;

    fn read(section: &Reader<'_>) -> Result<Self, Failure>;
}

/// A type that a key of a section can have. Options may be left out; lists are empty then; all else must be there,
/// given or by default.
pub trait Field: Sized {
    fn read_field(section: &Reader<'_>, name: &str) -> Result<Self, Failure>;
}

impl<T: FromValue> Field for T {
    fn read_field(section: &Reader<'_>, name: &str) -> Result<Self, Failure> {
        match section.find(name)? {
            Some(value) => Ok(value),
            None => T::absent().ok_or_else(|| section.missing(name)),
        }
    }
}

impl<T: FromValue> Field for Option<T> {
    fn read_field(section: &Reader<'_>, name: &str) -> Result<Self, Failure> {
        section.find(name)
    }
}

/// The mappings of a list.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct List<T>(pub Vec<T>);

impl<T: Keys> Field for List<T> {
    fn read_field(section: &Reader<'_>, name: &str) -> Result<Self, Failure> {
        section.items(name)?.iter().map(T::read).collect::<Result<_, _>>().map(Self)
    }
}

impl Field for Option<BTreeMap<String, u64>> {
    fn read_field(section: &Reader<'_>, name: &str) -> Result<Self, Failure> {
        section.counts(name).map(|counts| counts.map(BTreeMap::from_iter))
    }
}

/// Defines a section. Each entry is a key: its doc comment (which is its help), its name, its type, what it may hold, its
/// default in YAML, and what other trainers call it:
///
/// ```text
/// section! {
///     /// Checkpoints.
///     pub struct SaveConfig {
///         /// Save a checkpoint every N updates.
///         every: Option<u64> = count(), also ["save_steps"];
///         /// Number of most recent checkpoints to keep.
///         keep: u64 = count(), default "2", also ["save_total_limit"];
///     }
/// }
/// ```
///
/// `field as "name"` gives a key a name that is no Rust identifier. `one_of` lists keys of which only one may be set.
/// `then` names a function `fn(Self, &Reader) -> Result<Self, Failure>` for what concerns several keys. Without `struct`,
/// `table NAME` makes only the table.
macro_rules! section {
    (
        $(#[$about:meta])*
        pub struct $section:ident {
            $(
                $(#[doc = $help:literal])+
                $field:ident $(as $name:literal)? : $type:ty = $form:expr
                    $(, default $default:literal)? $(, also [$($also:literal),+ $(,)?])? ;
            )*
        }
        $(one_of $one_of:expr;)?
        $(then $then:path;)?
    ) => {
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $section {
            $( $(#[doc = $help])+ pub $field: $type, )*
        }

        impl $crate::config::section::Keys for $section {
            const SECTION: &'static $crate::config::schema::Section = &$crate::config::schema::Section {
                keys: &[$($crate::config::schema::Key {
                    name: $crate::config::section::name!($field $($name)?),
                    form: $form,
                    default: $crate::config::section::or_none!($($default)?),
                    also: &[$($($also),+)?],
                    help: &[$($help),+],
                }),*],
                one_of: $crate::config::section::or_empty!($($one_of)?),
            };

            fn read(_section: &$crate::config::reader::Reader<'_>) -> Result<Self, $crate::failure::Failure> {
                let read = Self {
                    $($field: $crate::config::section::Field::read_field(
                        _section,
                        $crate::config::section::name!($field $($name)?),
                    )?,)*
                };
                $(let read = $then(read, _section)?;)?
                Ok(read)
            }
        }

        impl $crate::config::section::Field for $section {
            fn read_field(
                section: &$crate::config::reader::Reader<'_>,
                name: &str,
            ) -> Result<Self, $crate::failure::Failure> {
                <Self as $crate::config::section::Keys>::read(&section.section(name)?)
            }
        }

        impl $crate::config::section::Field for Option<$section> {
            fn read_field(
                section: &$crate::config::reader::Reader<'_>,
                name: &str,
            ) -> Result<Self, $crate::failure::Failure> {
                let given = section.given(name)?;
                given.map(|below| <$section as $crate::config::section::Keys>::read(&below)).transpose()
            }
        }
    };
    (
        $(#[$about:meta])*
        pub table $table:ident {
            $(
                $(#[doc = $help:literal])+
                $field:ident $(as $name:literal)? = $form:expr $(, also [$($also:literal),+ $(,)?])? ;
            )*
        }
        $(one_of $one_of:expr;)?
    ) => {
        $(#[$about])*
        pub const $table: &$crate::config::schema::Section = &$crate::config::schema::Section {
            keys: &[$($crate::config::schema::Key {
                name: $crate::config::section::name!($field $($name)?),
                form: $form,
                default: None,
                also: &[$($($also),+)?],
                help: &[$($help),+],
            }),*],
            one_of: $crate::config::section::or_empty!($($one_of)?),
        };
    };
}

macro_rules! name {
    ($field:ident) => {
        stringify!($field)
    };
    ($field:ident $name:literal) => {
        $name
    };
}

macro_rules! or_none {
    () => {
        None
    };
    ($value:expr) => {
        Some($value)
    };
}

macro_rules! or_empty {
    () => {
        &[]
    };
    ($value:expr) => {
        $value
    };
}

pub(crate) use {name, or_empty, or_none, section};
