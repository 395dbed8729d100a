"""What the strategies' cases find: rows of one table, panels of one picture, faults of our side."""

import math

from compare.sides import median, ratio_text


class Findings:
    """Gathers rows, panels and faults. A row's ratio is above 1 where we are faster, or take less."""

    def __init__(self):
        self.rows, self.panels, self.faults, self.code = [], {}, [], 0

    def row(self, case, what, unit, ours, peer=None, ratios=None, asked=None, aim=None, judged="ratio", note=""):
        """`ours`, `peer`: numbers, or None where they are unknown; `ratios`: one per round, by default their quotient.
        `asked` and `aim` are of the column that `judged` names, "ratio" or "ours", where larger is better."""
        if ratios is None:
            ratios = [peer / ours] if known(ours) and known(peer) else []
        self.rows.append(
            {
                "case": case,
                "what": what,
                "unit": unit,
                "ours": ours if known(ours) else None,
                "peer": peer if known(peer) else None,
                "ratio": median(ratios) if ratios else None,
                "ratios": list(ratios),
                "asked": asked,
                "aim": aim,
                "judged": judged,
                "note": note,
            }
        )

    def panel(self, title, unit, group, values):
        """Bars of one group of a panel: {series: number}; unknown ones are left out."""
        groups = self.panels.setdefault(title, {"unit": unit, "groups": {}})["groups"]
        groups.setdefault(group, {}).update({series: value for series, value in values.items() if known(value)})

    def fault(self, what, reason, code=None):
        """Something of ours failed, which the call must not hide: `code` becomes its exit code, else 1."""
        self.faults.append(f"{what}: {reason}")
        self.code = self.code or code or 1

    @classmethod
    def of(cls, data):
        """Those that data() gave."""
        findings = cls()
        findings.rows, findings.panels, findings.faults = data["rows"], data["panels"], data["faults"]
        return findings

    def data(self):
        return {"rows": self.rows, "panels": self.panels, "faults": self.faults}

    def table(self):
        widths = [max((len(row[key]) for row in self.rows), default=0) for key in ("case", "what")]
        case, what = max(widths[0], 4), max(widths[1], 4)
        lines = [
            f"{'case':<{case}}  {'what':<{what}}{'ours':>10}{'peer':>10}  "
            f"{'unit':<9}{'ratio':>18}{'asked':>8}{'aim':>8}"
        ]
        for row in self.rows:
            mark = "x" if row["judged"] == "ratio" else ""
            goals = "".join(f"{'' if row[key] is None else f'{row[key]:g}{mark}':>8}" for key in ("asked", "aim"))
            ratio = ratio_text(row["ratios"]).strip() if len(row["ratios"]) > 1 else number(row["ratio"])
            lines.append(
                f"{row['case']:<{case}}  {row['what']:<{what}}{number(row['ours']):>10}{number(row['peer']):>10}  "
                f"{row['unit']:<9}"
                f"{ratio:>18}{goals}  {verdict(row):<14}{row['note']}".rstrip()
            )
        lines += [f"OURS FAILED  {fault}" for fault in self.faults]
        return "\n".join(lines)


def known(value):
    return value is not None and not math.isnan(value)


def number(value):
    if not known(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 100 else f"{value:.2f}"


def verdict(row):
    if row["asked"] is None:
        return ""
    value = row[row["judged"]]
    if value is None:
        return "NOT MEASURED"
    return "aim reached" if value >= row["aim"] else "reached" if value >= row["asked"] else "MISSED"
