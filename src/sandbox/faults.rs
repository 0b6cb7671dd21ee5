//! The fault switches: what goes wrong on purpose. Set at start, in process, or by `POST /sandbox/faults`.

use std::{fmt, str::FromStr};

use rand::{Rng, rngs::StdRng};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Everything that can be made to go wrong; the default is a platform without faults. In JSON every field may be left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, clap::Args)]
#[serde(default, deny_unknown_fields)]
pub struct Faults {
    /// Webhooks never sent: `3` = the next 3, `10%` = one in ten
    #[arg(long, value_name = "RULE", default_value = "0")]
    pub webhook_drop: Rule,
    /// Webhooks sent twice at once, with the same webhook-id
    #[arg(long, value_name = "RULE", default_value = "0")]
    pub webhook_duplicate: Rule,
    /// Webhooks held back for --webhook-delay-ms
    #[arg(long, value_name = "RULE", default_value = "0")]
    pub webhook_delay: Rule,
    /// How long a delayed webhook is held back, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pub webhook_delay_ms: u64,
    /// Result submissions answered 429 with Retry-After
    #[arg(long, value_name = "RULE", default_value = "0")]
    pub submit_429: Rule,
    /// Result submissions answered 500, nothing applied
    #[arg(long, value_name = "RULE", default_value = "0")]
    pub submit_500: Rule,
    /// Result submissions answered 409, nothing applied
    #[arg(long, value_name = "RULE", default_value = "0")]
    pub submit_409: Rule,
    /// Result submissions answered 422, refused for good
    #[arg(long, value_name = "RULE", default_value = "0")]
    pub submit_422: Rule,
    /// Result submissions answered 400 `Unknown pending tool call`, as if they came too early
    #[arg(long, value_name = "RULE", default_value = "0")]
    pub submit_race: Rule,
    /// Result submissions that are accepted but answered 500: the answer got lost
    #[arg(long, value_name = "RULE", default_value = "0")]
    pub submit_lost: Rule,
    /// Session reads answered 500
    #[arg(long, value_name = "RULE", default_value = "0")]
    pub retrieve_500: Rule,
    /// Session reads answered 429 with Retry-After
    #[arg(long, value_name = "RULE", default_value = "0")]
    pub retrieve_429: Rule,
    /// Requests of any kind answered 401
    #[arg(long, value_name = "RULE", default_value = "0")]
    pub unauthorized: Rule,
    /// Value of Retry-After with a 429, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub retry_after: u32,
    /// For how many reads an accepted call still stands in required_actions
    #[arg(long, value_name = "READS", default_value_t = 0)]
    pub linger: u32,
    /// A round of calls that waits this long fails its turn with request_timeout, in milliseconds; 0 = never
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pub expire_ms: u64,
    /// Every answer takes this long, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pub answer_delay_ms: u64,
    /// The model thinks this long before each move, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pub think_ms: u64,
}

/// How a result submission is made to fail.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum SubmitFault {
    RateLimited,
    Internal,
    Conflict,
    Refused,
    Race,
    Lost,
}

impl Faults {
    pub(super) fn on_submit(&mut self, random: &mut StdRng) -> Option<SubmitFault> {
        let faults = [
            (&mut self.submit_429, SubmitFault::RateLimited),
            (&mut self.submit_500, SubmitFault::Internal),
            (&mut self.submit_409, SubmitFault::Conflict),
            (&mut self.submit_422, SubmitFault::Refused),
            (&mut self.submit_race, SubmitFault::Race),
            (&mut self.submit_lost, SubmitFault::Lost),
        ];
        faults.into_iter().find_map(|(rule, fault)| rule.hits(random).then_some(fault))
    }
}

/// When a fault strikes. In JSON a number, or a text such as `"10%"`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// The next so many times, then never; 0 is off.
    Next(u32),
    /// Each time with this chance, 0.0 to 1.0.
    Chance(f64),
}

impl Rule {
    pub const OFF: Self = Self::Next(0);
    pub const ALWAYS: Self = Self::Chance(1.0);

    pub(super) fn hits(&mut self, random: &mut StdRng) -> bool {
        match self {
            Self::Next(0) => false,
            Self::Next(left) => {
                *left -= 1;
                true
            }
            Self::Chance(chance) => random.random::<f64>() < *chance,
        }
    }
}

impl Default for Rule {
    fn default() -> Self {
        Self::OFF
    }
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "must be a count such as 3, or a share such as 10%".to_owned();
        match text.strip_suffix('%') {
            Some(percent) => match percent.trim().parse::<f64>() {
                Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(Self::Chance(percent / 100.0)),
                _ => Err(wrong()),
            },
            None => text.parse().map(Self::Next).map_err(|_| wrong()),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Next(times) => write!(f, "{times}"),
            Self::Chance(chance) => write!(f, "{}%", chance * 100.0),
        }
    }
}

impl Serialize for Rule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Next(times) => serializer.serialize_u32(*times),
            Self::Chance(_) => serializer.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for Rule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = match serde_json::Value::deserialize(deserializer)? {
            serde_json::Value::String(text) => text,
            other => other.to_string(),
        };
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn json_names_only_what_is_to_go_wrong() {
        let faults: Faults = serde_json::from_str(r#"{"submit_429":2,"webhook_drop":"25%","linger":3}"#).unwrap();
        assert_eq!(faults.submit_429, Rule::Next(2));
        assert_eq!(faults.webhook_drop, Rule::Chance(0.25));
        assert_eq!(faults.linger, 3);
        assert_eq!(faults.submit_500, Rule::OFF);
        assert_eq!(serde_json::from_str::<Faults>(&serde_json::to_string(&faults).unwrap()).unwrap(), faults);
    }

    #[test]
    fn nonsense_is_refused() {
        for json in [r#"{"submit_429":-1}"#, r#"{"submit_429":"110%"}"#, r#"{"submit_42":1}"#, r#"{"linger":true}"#] {
            assert!(serde_json::from_str::<Faults>(json).is_err(), "{json}");
        }
    }

    #[test]
    fn a_count_runs_out_and_a_chance_does_not() {
        let mut random = StdRng::seed_from_u64(1);
        let mut faults = Faults { submit_429: Rule::Next(2), submit_race: Rule::ALWAYS, ..Faults::default() };
        let struck: Vec<_> = (0..4).filter_map(|_| faults.on_submit(&mut random)).collect();
        use SubmitFault::{Race, RateLimited};
        assert_eq!(struck, [RateLimited, RateLimited, Race, Race]);
    }
}
