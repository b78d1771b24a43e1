//! The time of day as a value, for templates that print the date.

/// A moment and the local offset from UTC. The caller reads the clock; nothing here does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clock {
    /// Seconds since 1970-01-01 00:00 UTC.
    pub unix_seconds: i64,
    /// Seconds to add for local time.
    pub utc_offset: i32,
}

const MONTHS: [&str; 12] =
    ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"];
const WEEKDAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// A calendar date and time of day.
struct Fields {
    year: i64,
    month: usize,
    day: i64,
    day_of_year: i64,
    weekday: usize,
    second_of_day: i64,
}

impl Clock {
    fn fields(self) -> Fields {
        let seconds = self.unix_seconds.saturating_add(i64::from(self.utc_offset));
        let days = seconds.div_euclid(86_400);
        // Years are counted from March in cycles of 400 years, so that the leap day is the last day
        // of its year.
        let shifted = days + 719_468;
        let cycle = shifted.div_euclid(146_097);
        let in_cycle = shifted.rem_euclid(146_097);
        let year_in_cycle = (in_cycle - in_cycle / 1_460 + in_cycle / 36_524 - in_cycle / 146_096) / 365;
        let from_march = in_cycle - (365 * year_in_cycle + year_in_cycle / 4 - year_in_cycle / 100);
        let month_from_march = (5 * from_march + 2) / 153;
        let day = from_march - (153 * month_from_march + 2) / 5 + 1;
        let month = ((month_from_march + 2) % 12) as usize;
        let year = cycle * 400 + year_in_cycle + i64::from(month < 2);
        let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let day_of_year = if month < 2 { from_march - 305 } else { from_march + 60 + i64::from(leap) };
        Fields {
            year,
            month,
            day,
            day_of_year,
            weekday: (days + 4).rem_euclid(7) as usize,
            second_of_day: seconds.rem_euclid(86_400),
        }
    }

    /// The time in a `strftime` format. Supported directives, as in Python for a time without a
    /// zone: `%Y %y %C %m %d %e %B %b %h %A %a %w %u %j %U %W %H %k %I %l %M %S %f %p %P %F %T %R
    /// %r %D %c %x %X %Z %z %n %t %%`. `%-` before a number drops the padding. Any other directive
    /// stays unchanged.
    pub fn format(self, format: &str) -> String {
        let fields = self.fields();
        let mut out = String::new();
        let mut chars = format.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            let mut directive = chars.next();
            let padded = directive != Some('-');
            if !padded {
                directive = chars.next();
            }
            match directive.and_then(|d| fields.directive(d, padded)) {
                Some(text) => out.push_str(&text),
                None => {
                    out.push_str(if padded { "%" } else { "%-" });
                    out.extend(directive);
                }
            }
        }
        out
    }
}

impl Fields {
    fn directive(&self, directive: char, padded: bool) -> Option<String> {
        let number = |value: i64, width: usize| if padded { format!("{value:0width$}") } else { value.to_string() };
        let (hour, minute, second) = (self.second_of_day / 3600, self.second_of_day / 60 % 60, self.second_of_day % 60);
        let month = self.month as i64 + 1;
        Some(match directive {
            'Y' => self.year.to_string(),
            'y' => number(self.year.rem_euclid(100), 2),
            'm' => number(month, 2),
            'd' => number(self.day, 2),
            'e' => format!("{:2}", self.day),
            'j' => number(self.day_of_year, 3),
            'B' => MONTHS[self.month].to_owned(),
            'b' | 'h' => MONTHS[self.month][..3].to_owned(),
            'A' => WEEKDAYS[self.weekday].to_owned(),
            'a' => WEEKDAYS[self.weekday][..3].to_owned(),
            'H' => number(hour, 2),
            'I' => number((hour + 11) % 12 + 1, 2),
            'M' => number(minute, 2),
            'S' => number(second, 2),
            'p' => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            'F' => format!("{}-{month:02}-{:02}", self.year, self.day),
            'T' => format!("{hour:02}:{minute:02}:{second:02}"),
            'k' => format!("{hour:2}"),
            'l' => format!("{:2}", (hour + 11) % 12 + 1),
            'P' => if hour < 12 { "am" } else { "pm" }.to_owned(),
            'R' => format!("{hour:02}:{minute:02}"),
            'r' => format!("{:02}:{minute:02}:{second:02} {}", (hour + 11) % 12 + 1, if hour < 12 { "AM" } else { "PM" }),
            'X' => format!("{hour:02}:{minute:02}:{second:02}"),
            'x' => format!("{month:02}/{:02}/{:02}", self.day, self.year.rem_euclid(100)),
            'c' => format!(
                "{} {} {:2} {hour:02}:{minute:02}:{second:02} {}",
                &WEEKDAYS[self.weekday][..3],
                &MONTHS[self.month][..3],
                self.day,
                self.year
            ),
            'C' => number(self.year.div_euclid(100), 2),
            'w' => self.weekday.to_string(),
            'u' => ((self.weekday + 6) % 7 + 1).to_string(),
            'U' => number((self.day_of_year + 6 - self.weekday as i64) / 7, 2),
            'W' => number((self.day_of_year + 6 - (self.weekday as i64 + 6) % 7) / 7, 2),
            'f' => "000000".to_owned(),
            // A time without a zone, as Python's `now` is.
            'Z' | 'z' => String::new(),
            'n' => "\n".to_owned(),
            't' => "\t".to_owned(),
            'D' => format!("{month:02}/{:02}/{:02}", self.day, self.year.rem_euclid(100)),
            '%' => "%".to_owned(),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Clock;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let check = |unix_seconds, utc_offset, format: &str, want: &str| {
            assert_eq!(Clock { unix_seconds, utc_offset }.format(format), want, "{unix_seconds} {format}");
        };
        check(0, 0, "%Y-%m-%d %H:%M:%S %A %j", "1970-01-01 00:00:00 Thursday 001");
        check(951_782_400, 0, "%d %b %Y %a %j", "29 Feb 2000 Tue 060");
        check(1_709_251_199, 0, "%F %T %p %I", "2024-02-29 23:59:59 PM 11");
        check(1_709_251_199, 3600, "%F %T %p %I", "2024-03-01 00:59:59 AM 12");
        check(1_735_603_200, 0, "%-d.%-m.%y %j", "31.12.24 366");
        check(-86_400, 0, "%B %e", "December 31");
        check(0, 0, "%e %D %% %Q %-Q %", " 1 01/01/70 % %Q %-Q %");
        check(i64::MAX, 0, "%p", "PM");
        check(
            1_709_251_199,
            0,
            "%c|%x|%X|%R|%r|%w%u|%U %W|%C|%k|%l|%P%Z%z",
            "Thu Feb 29 23:59:59 2024|02/29/24|23:59:59|23:59|11:59:59 PM|44|08 09|20|23|11|pm",
        );
    }
}
