//! Date and time for templates that print them.

use jiff::{
    Timestamp, ZonedDateTime,
    civil::DateTime,
    fmt::strtime::{BrokenDownTime, Config},
    tz::TimeZone,
};

/// A date and a time of day. The caller reads the system's clock; templates do not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clock(DateTime);

impl Clock {
    /// The start of 1970.
    pub const EPOCH: Clock = Clock(DateTime::constant(1970, 1, 1, 0, 0, 0, 0));

    /// The present in the system's time zone; UTC if the zone is unknown.
    pub fn now() -> Clock {
        Clock(ZonedDateTime::now().datetime())
    }

    /// A time in UTC, in seconds since 1970-01-01. Times outside the years -9999 to 9999 become the
    /// nearest one inside.
    pub fn utc(unix_seconds: i64) -> Clock {
        let seconds = unix_seconds.clamp(Timestamp::MIN.as_second(), Timestamp::MAX.as_second());
        Clock(TimeZone::UTC.to_datetime(Timestamp::from_second(seconds).unwrap_or(Timestamp::UNIX_EPOCH)))
    }

    /// The time in a `strftime` format, as Python's `datetime.strftime` writes a time without a
    /// zone in the C locale. An unknown directive stays unchanged.
    pub fn format(self, format: &str) -> String {
        let mut out = String::new();
        let config = Config::new().lenient(true);
        match BrokenDownTime::from(self.0).format_with_config(&config, without_locale(format), &mut out) {
            Ok(()) => out,
            Err(_) => format.to_owned(),
        }
    }
}

/// Replaces the directives that depend on a locale, a zone or a fraction of a second.
fn without_locale(format: &str) -> String {
    let mut out = String::new();
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        let mut chars = rest[at + 1..].chars();
        match chars.next() {
            Some('c') => out.push_str("%a %b %e %H:%M:%S %Y"),
            Some('x') => out.push_str("%m/%d/%y"),
            Some('X') => out.push_str("%H:%M:%S"),
            Some('r') => out.push_str("%I:%M:%S %p"),
            Some('f') => out.push_str("000000"),
            Some('z' | 'Z') => {}
            Some(other) => {
                out.push('%');
                out.push(other);
            }
            None => out.push('%'),
        }
        rest = chars.as_str();
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::Clock;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let check = |unix_seconds, format: &str, want: &str| {
            assert_eq!(Clock::utc(unix_seconds).format(format), want, "{unix_seconds} {format}");
        };
        check(0, "%Y-%m-%d %H:%M:%S %A %j", "1970-01-01 00:00:00 Thursday 001");
        check(951_782_400, "%d %b %Y %a %j", "29 Feb 2000 Tue 060");
        check(1_709_251_199, "%F %T %p %I", "2024-02-29 23:59:59 PM 11");
        check(1_735_603_200, "%-d.%-m.%y %j", "31.12.24 366");
        check(-86_400, "%B %e", "December 31");
        check(0, "%e %D %% %Q %-Q %", " 1 01/01/70 % %Q %-Q %");
        check(i64::MAX, "%Y %p", "9999 PM");
        check(
            1_709_251_199,
            "%c|%x|%X|%R|%r|%w%u|%U %W|%C|%k|%l|%P%Z%z%f",
            "Thu Feb 29 23:59:59 2024|02/29/24|23:59:59|23:59|11:59:59 PM|44|08 09|20|23|11|pm000000",
        );
    }
}
